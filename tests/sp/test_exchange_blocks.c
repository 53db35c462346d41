/* tests/sp/test_exchange_blocks.c -- ranks take one number of blocks, or none of them goes on. */
#include "base/check.h"

#include "comm/ranks.h"
#include "sp/exchange_blocks.h"

#include <stdlib.h>

enum { RANKS = 3 };

static const struct scene {
    const char *set[RANKS]; /* SPTUNE_EXCHANGE_BLOCKS, NULL: not set */
    int multiprocessors[RANKS], most;
    const char *why; /* NULL: they agree on */
    struct exchange_blocks agreed;
} scenes[] = {
    {{NULL, NULL, NULL}, {132, 132, 132}, 0, NULL, {0, 0}},
    {{NULL, "", NULL}, {132, 132, 132}, 64, NULL, {0, 64}},
    {{"8", "8", "8"}, {132, 132, 132}, 64, NULL, {8, 64}},
    {{NULL, NULL, NULL}, {132, 114, 132}, 0, NULL, {0, 114}}, /* a launch that goes by the GPU's size would not meet */
    {{NULL, NULL, NULL}, {132, 114, 132}, 64, NULL, {0, 64}},
    {{"8", "8", "8"}, {132, 132, 58}, 64, NULL, {8, 58}},
    {{"8", "16", "12"}, {132, 132, 132}, 0, "16 on one rank of an exchange and 8 on another", {0, 0}},
    {{"8", "8", NULL}, {132, 132, 132}, 0, "8 on one rank of an exchange and not set on another", {0, 0}},
    {{"8", "8", "many"}, {132, 132, 132}, 0, "many", {0, 0}},
    {{"100000", "8", "8"}, {132, 132, 132}, 0, "100000", {0, 0}},
};

static int rank_main(const struct launch *launch, void *arg)
{
    struct side side;
    (void)arg;
    RANK_TRY(side_open(&side, launch, NULL));
    for (int i = 0; i < CHECK_COUNT(scenes); i++) {
        const struct scene *s = &scenes[i];
        struct exchange_blocks blocks = {-1, -1};
        unsetenv("SPTUNE_EXCHANGE_BLOCKS");
        if (s->set[launch->rank] != NULL)
            setenv("SPTUNE_EXCHANGE_BLOCKS", s->set[launch->rank], 1);
        enum status status = exchange_blocks_agree(side.comm, s->multiprocessors[launch->rank], s->most, &blocks);
        if (s->why != NULL) {
            RANK_CHECK(status == STATUS_USAGE && strstr(status_last()->what, s->why) != NULL && blocks.exactly == -1);
            continue;
        }
        RANK_TRY(status);
        RANK_CHECK(blocks.exactly == s->agreed.exactly && blocks.most == s->agreed.most);
    }
    side_close(&side);
    return 0;
}

static void all_ranks_take_as_many(void **state)
{
    (void)state;
    ranks_pass(RANKS, rank_main, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_ranks_take_as_many)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
