/* cli/verb_tune.c -- `sptune tune`: measure what matters here, recommend, write the files. */
#include "base/file.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/units.h"
#include "cli/place.h"
#include "cli/prove.h"
#include "cli/ranks.h"
#include "cli/session.h"
#include "cli/tune_options.h"
#include "tuner/emit.h"
#include "tuner/search.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct order {
    struct tune_order asked;
    struct ranks *ranks; /* NULL: nothing runs here */
    const struct topo *topo;
};

static enum status write_list(struct cli *cli, const struct order *order, const struct recommendation *const *answers,
                              int n)
{
    struct json_envelope envelope = cli_envelope(cli);
    json_t *document = recommend_list_to_json(answers, n, &envelope);
    if (document == NULL)
        return FAIL(STATUS_NOMEM, "no memory for the document");
    char path[512];
    text_print(path, sizeof path, "%s/plans.json", order->asked.out_dir);
    enum status status = file_make_dirs(order->asked.out_dir);
    if (status == STATUS_OK)
        status = json_write(path, document);
    if (status == STATUS_OK && cli->json)
        status = cli_print_json(cli, json_incref(document));
    json_decref(document);
    if (status != STATUS_OK || cli->json)
        return status;
    char *screen = NULL;
    TRY(recommend_list_screen(answers, n, &screen));
    status = cli_print(screen);
    free(screen);
    if (status == STATUS_OK)
        log_info("wrote %s; tune one length alone to get its configuration files", path);
    return status;
}

static enum status emit_files(struct cli *cli, const struct order *order, struct recommendation *answer)
{
    struct emit_context context = {.dir = order->asked.out_dir,
                                   .force = opt_given(&cli->opts, "force"),
                                   .envelope = cli_envelope(cli),
                                   .command = cli->command};
    /* A plan that fits nowhere is written down, but no launcher gets files for it. */
    int n = answer->verdict == WORK_DOES_NOT_FIT ? 0 : order->asked.nemit;
    return emit_all(answer, order->asked.emit, n, &context);
}

static enum status print_one(struct cli *cli, const struct order *order, struct bench_session *session,
                             const struct recommendation *answer, bool emitted)
{
    struct json_envelope envelope = cli_envelope(cli);
    json_t *document = recommend_to_json(answer, &envelope);
    if (document == NULL)
        return FAIL(STATUS_NOMEM, "no memory for the document");
    enum status status = session->store != NULL && session->run > 0
                             ? store_put_document(session->store, session->run, "recommendation", document)
                             : STATUS_OK;
    if (status == STATUS_OK && cli->json)
        status = cli_print_json(cli, json_incref(document));
    json_decref(document);
    if (status != STATUS_OK || cli->json)
        return status;
    char *screen = NULL, next[512];
    TRY(recommend_screen(answer, &screen));
    struct text out = {0};
    text_add(&out, "%s", screen);
    free(screen);
    emit_next(answer, order->asked.out_dir, next, sizeof next);
    if (emitted && next[0] != '\0')
        text_add(&out, "next %s\n", next);
    status = cli_print(text_get(&out));
    text_free(&out);
    return status;
}

static enum status write_one(struct cli *cli, const struct order *order, struct bench_session *session,
                             struct recommendation *answer)
{
    /* What was measured is worth printing even when a proof ends badly or a file cannot be written. */
    bool proves = order->ranks != NULL && opt_given(&cli->opts, "prove") && !interrupt_pending();
    enum status proved = proves ? prove_run(order->ranks, answer) : STATUS_OK;
    struct status_message unproved = *status_last();
    enum status emitted = emit_files(cli, order, answer);
    struct status_message message = *status_last();
    enum status status = print_one(cli, order, session, answer, emitted == STATUS_OK);
    if (emitted != STATUS_OK)
        status_restore(&message);
    status = emitted != STATUS_OK ? emitted : status;
    if (status == STATUS_OK && proved != STATUS_OK)
        status_restore(&unproved);
    return status == STATUS_OK ? proved : status;
}

static void free_answers(struct recommendation **answers, int n)
{
    for (int i = 0; i < n; i++) {
        if (answers[i] != NULL)
            recommend_free(answers[i]);
        free(answers[i]);
    }
    free(answers);
}

/* Every (heads, seq) cell in turn; a cell that has no legal plan is named and the others go on, unless it is the only
 * one. */
static enum status answer_all(struct cli *cli, struct order *order, struct bench_session *session,
                              struct recommendation **answers, int *n)
{
    struct tune_order *asked = &order->asked;
    enum status worst = STATUS_OK;
    for (int i = 0; i < asked->ncells; i++) {
        struct request *request = malloc(sizeof *request);
        if (request == NULL)
            return FAIL(STATUS_NOMEM, "no memory for a request");
        enum status status = tune_request(cli, asked, i, order->topo, request);
        answers[*n] = calloc(1, sizeof **answers);
        if (status == STATUS_OK && answers[*n] == NULL)
            status = FAIL(STATUS_NOMEM, "no memory for an answer");
        if (status == STATUS_OK)
            status = search_run(request, session, answers[*n]);
        free(request);
        if (status != STATUS_OK && status != STATUS_NOFIT) {
            free(answers[*n]);
            answers[*n] = NULL;
            if (asked->ncells == 1 || status != STATUS_USAGE)
                return status;
            log_warn("%s: %s", asked->cell_name[i], status_last()->what);
            continue;
        }
        worst = status == STATUS_NOFIT ? status : worst;
        (*n)++;
        if (interrupt_pending())
            break;
    }
    return *n > 0 ? worst : FAIL(STATUS_USAGE, "no cell has a legal plan");
}

static enum status answer(struct cli *cli, struct order *order, struct bench_session *session)
{
    struct recommendation **answers = calloc((size_t)order->asked.ncells, sizeof(struct recommendation *));
    int n = 0;
    if (answers == NULL)
        return FAIL(STATUS_NOMEM, "no memory for the answers");
    enum status found = answer_all(cli, order, session, answers, &n);
    struct status_message message = *status_last();
    enum status status = found;
    if (found == STATUS_OK || found == STATUS_NOFIT) {
        if (order->asked.ncells == 1 && answers[0] != NULL)
            status = write_one(cli, order, session, answers[0]);
        else
            status = write_list(cli, order, (const struct recommendation *const *)answers, n);
        if (status == STATUS_OK && session->store != NULL && session->run > 0)
            status = store_run_end(session->store, session->run);
        if (status == STATUS_OK && found == STATUS_NOFIT) {
            status_restore(&message);
            status = found;
        }
        if (status == STATUS_OK)
            status = interrupt_status();
    }
    free_answers(answers, n);
    return status;
}

static enum status root(struct ranks *ranks, void *arg)
{
    struct order *order = arg;
    struct bench_session session;
    TRY(session_open(ranks, "tune", 0, &session));
    session.reuse = true;
    order->ranks = ranks;
    enum status status = answer(ranks->cli, order, &session);
    session_close(&session);
    return status;
}

/* --replay: stored samples only, no ranks. */
static enum status decide_again(struct cli *cli, struct order *order, const char *replay)
{
    struct bench_session session = {.reuse = true};
    memcpy(cli->machine, order->topo->fingerprint, sizeof cli->machine);
    if (replay[0] == '\0')
        return WHERE(FAIL(STATUS_USAGE, "the store has no name"), "--replay");
    if (access(replay, F_OK) != 0)
        return HINT(WHERE(FAIL(STATUS_USAGE, "there is no store %s: %s", replay, strerror(errno)), "--replay"),
                    "name the store that `tune --store` wrote");
    TRY(store_open(replay, STORE_READ, &session.store));
    enum status status = answer(cli, order, &session);
    store_close(session.store);
    return status;
}

static enum status with_ranks(struct cli *cli, struct order *order)
{
    struct tune_order *asked = &order->asked;
    int usable = topo_usable_cpus(order->topo);
    if (asked->devices.kind != DEV_CUDA && asked->ranks > usable && !opt_given(&cli->opts, "oversubscribe"))
        return HINT(
            FAIL(STATUS_NODATA, "%d ranks on %d usable CPUs would time each other, not the plan", asked->ranks, usable),
            "use %d ranks, or --oversubscribe to go on all the same", usable);
    struct ranks_options how = {.n = asked->ranks,
                                .device = asked->devices.word,
                                .kind = asked->devices.kind,
                                .devices = asked->devices.n,
                                .stores = true,
                                .lock_us = asked->budget_us,
                                .answers = "this measurement",
                                .kept = "what was measured is kept, the same command goes on from there"};
    TRY(opt_count(&cli->opts, "threads", 1, DEV_THREADS_MAX, 0, &how.threads));
    return ranks_run(cli, order->topo, &how, root, order);
}

/* Everything that can be refused is refused before the first rank starts, and before another sptune that measures is
 * waited for. In a list a cell that makes no problem, or has no legal plan, is only waived. */
static enum status try_requests(struct cli *cli, const struct order *order)
{
    struct request *request = malloc(sizeof *request);
    struct status_message first = {0};
    bool fine = false;
    if (request == NULL)
        return FAIL(STATUS_NOMEM, "no memory for a request");
    for (int i = 0; i < order->asked.ncells && !fine; i++) {
        enum status status = tune_request(cli, &order->asked, i, order->topo, request);
        if (status == STATUS_OK)
            status = search_refuse(request);
        fine = status == STATUS_OK;
        if (!fine && first.what[0] == '\0')
            first = *status_last();
    }
    free(request);
    status_clear();
    if (fine)
        return STATUS_OK;
    status_restore(&first);
    return first.code;
}

static enum status run(struct cli *cli)
{
    struct topo topo;
    struct order order = {.topo = &topo};
    bool listed = false;
    TRY(tune_list_plugins(cli, &listed));
    if (listed)
        return STATUS_OK;
    TRY(topo_open("local", &topo));
    enum status status = tune_read(cli, &topo, &order.asked);
    const char *replay = opt_value(&cli->opts, "replay");
    if (status == STATUS_OK)
        status = place_check_dir(order.asked.out_dir, "--out");
    if (status == STATUS_OK)
        status = try_requests(cli, &order);
    if (status == STATUS_OK)
        status = replay != NULL ? decide_again(cli, &order, replay) : with_ranks(cli, &order);
    tune_free(&order.asked);
    topo_free(&topo);
    return status;
}

static const struct opt *const tables[] = {tune_options, NULL};

const struct verb verb_tune = {
    .name = "tune",
    .usage = "--model CONFIG --seq LIST [options]",
    .about = "measure what matters here and recommend sp_size, dp sizes and kernel",
    .help = "Enumerates the plans that the target runtime executes, refuses by rule, estimates, measures the few that "
            "could win, "
            "and chooses under memory and batch limits. Writes the configuration files to --out. Lists of lengths or "
            "heads give a "
            "table of the best plan per cell.",
    .ranks = true,
    .tables = tables,
    .run = run,
};
