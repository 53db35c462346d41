/* tests/sp/test_tables.c -- every exchange and target that a file of src/sp defines is a row of its table. */
#include "sp/sp_test.h"

#include "base/table.h"
#include "sp/exchange.h"
#include "sp/target.h"

static void every_exchange_is_a_row(void **state)
{
    (void)state;
    int rows = 0;
    while (exchanges[rows] != NULL)
        rows++;
#if !SPTUNE_CUDA
    rows = -1; /* the table leaves out those between GPUs */
#endif
    table_holds("src/sp", "exchange", "exchange", "src/sp/exchange.c", rows);
}

static void every_target_is_a_row(void **state)
{
    (void)state;
    int rows = 0;
    while (targets[rows] != NULL)
        rows++;
    table_holds("src/sp", "target", "target", "src/sp/target.c", rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_exchange_is_a_row),
        cmocka_unit_test(every_target_is_a_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
