/* cli/list.c -- what the lists of several verbs share. */
#include "cli/list.h"

#include "sp/exchange.h"

#include <string.h>

bool list_asked(const struct cli *cli, const char *option)
{
    const char *value = opt_value(&cli->opts, option);
    return value != NULL && strcmp(value, "list") == 0;
}

enum status list_devices(const struct cli *cli, unsigned *out)
{
    static const char *const words[] = {"auto", "cpu", "cuda"};
    static const unsigned kinds[] = {1u << DEV_CPU | 1u << DEV_CUDA, 1u << DEV_CPU, 1u << DEV_CUDA};
    int word = 0;
    TRY(opt_word(&cli->opts, "device", words, 3, 0, &word));
    *out = kinds[word];
    return STATUS_OK;
}

enum status list_print(struct cli *cli, const char *what, const struct cli_item *items, int n)
{
    if (n == 0)
        return HINT(WHERE(FAIL(STATUS_ABSENT, "this build has no %s for such a device", what), "--device"),
                    "use --device cpu, or a build with GPU code (docs/gpu-hosts.md)");
    return cli_print_list(cli, items, n);
}

enum status list_exchanges(struct cli *cli)
{
    struct cli_item items[LIST_ITEMS];
    unsigned devices = 0;
    int n = 0;
    TRY(list_devices(cli, &devices));
    for (int i = 0; exchanges[i] != NULL && n < LIST_ITEMS; i++)
        if ((devices & 1u << exchanges[i]->dev) != 0)
            items[n++] = (struct cli_item){exchanges[i]->name, exchanges[i]->about};
    return list_print(cli, "exchange", items, n);
}
