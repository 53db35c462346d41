/* tuner/explain.c -- answers from a stored recommendation. */
#include "tuner/explain.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>

enum status explain_run(const json_t *recommendation, const struct explain_options *options, char **out)
{
    (void)options;
    struct text text = {0};
    json_t *plan = NULL;
    const char *plan_text = "";
    TRY(json_need(recommendation, "plan", "recommendation", &plan));
    TRY(json_str(plan, "text", "recommendation", "", &plan_text));
    text_add(&text, "USE  %s\n", plan_text);
    enum status status = text_status(&text);
    if (status != STATUS_OK)
        text_free(&text);
    else
        *out = text.s;
    return status;
}

json_t *explain_to_json(const json_t *recommendation, const struct explain_options *options)
{
    char *text = NULL;
    if (explain_run(recommendation, options, &text) != STATUS_OK)
        return NULL;
    json_t *root = json_pack("{s:s}", "text", text);
    free(text);
    return root;
}
