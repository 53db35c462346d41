/* cli/train_plot.c -- the loss by step as a picture. */
#include "base/file.h"
#include "base/log.h"
#include "cli/place.h"
#include "cli/stamp.h"
#include "cli/train_screen.h"
#include "results/export.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *terminal(const char *path)
{
    size_t len = strlen(path);
    return len > 4 && strcmp(path + len - 4, ".png") == 0 ? "png" : "svg";
}

enum status train_plot_check(const char *path)
{
    char *bytes = NULL;
    size_t len = 0;
    TRY(place_check_file(path, "--plot"));
    TRY(WHERE(export_gnuplot("plot 0\n", terminal(path), &bytes, &len), "--plot %s", path));
    free(bytes);
    return STATUS_OK;
}

/* Data of one curve as gnuplot reads them after its `plot`. */
static void add_points(struct text *script, const struct train_screen *screen, bool eval)
{
    for (int64_t i = 0; i < screen->n_points; i++) {
        const struct train_point *p = &screen->points[i];
        double y = eval ? p->eval : p->loss;
        if (!isfinite(y))
            continue;
        text_add(script, "%lld %.6g\n", (long long)p->step, y);
    }
    text_add(script, "e\n");
}

/* A model's name may come from a file: inside single quotes gnuplot expands nothing, and there are no more of them. */
static void add_title(struct text *script, const struct train_screen *screen)
{
    const struct trainer_options *o = &screen->options->trainer;
    char name[sizeof o->model.name + 1], plan[PLAN_TEXT];
    text_print(name, sizeof name, "%s", o->model.name);
    text_clean(name);
    for (char *at = name; *at != '\0'; at++)
        *at = *at == '\'' ? ' ' : *at;
    text_add(script,
             "set title '%s: loss by step' noenhanced\nset label 1 '%s' at graph 0.5, graph 1.03 center "
             "noenhanced font ',9'\n",
             name, plan_text(&o->plan, plan));
}

enum status train_plot(const struct train_screen *screen, const char *path)
{
    struct text script = {0};
    char *bytes = NULL;
    size_t len = 0;
    bool evals = false;
    if (screen->n_points == 0)
        return FAIL(STATUS_NODATA, "--plot: no step was done, so there is no curve");
    for (int64_t i = 0; i < screen->n_points; i++)
        evals = evals || isfinite(screen->points[i].eval);
    add_title(&script, screen);
    text_add(&script, "set xlabel 'step'\nset ylabel 'mean loss of a label, nats'\nset grid lt 1 lc rgb '#dddddd'\n"
                      "set key right top\nset tmargin 4\n");
    text_add(&script, "plot '-' using 1:2 with lines lw 2 lc rgb '#0072B2' title 'trained on'%s\n",
             evals ? ", '-' using 1:2 with linespoints pt 7 lc rgb '#D55E00' title 'evaluated'" : "");
    add_points(&script, screen, false);
    if (evals)
        add_points(&script, screen, true);
    enum status status = text_status(&script);
    if (status == STATUS_OK)
        status = export_gnuplot(text_get(&script), terminal(path), &bytes, &len);
    if (status == STATUS_OK)
        status = stamp_svg(screen->cli, &bytes, &len);
    if (status == STATUS_OK)
        status = file_write(path, bytes, len);
    if (status == STATUS_OK)
        log_info("wrote %s", path);
    text_free(&script);
    free(bytes);
    return status;
}
