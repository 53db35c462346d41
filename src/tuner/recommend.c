/* tuner/recommend.c -- names and life of an answer. */
#include "tuner/recommend.h"

#include <stdlib.h>

static const struct {
    const char *name;
    char letter;
} sources[] = {
    [RECOMMEND_MEASURED] = {"measured", 'M'},         [RECOMMEND_INTERPOLATED] = {"interpolated", 'I'},
    [RECOMMEND_EXTRAPOLATED] = {"extrapolated", 'X'}, [RECOMMEND_PUBLISHED] = {"published", 'P'},
    [RECOMMEND_ASSUMED] = {"assumed", 'A'},
};

const char *recommend_source_name(enum recommend_source source)
{
    return sources[source].name;
}

char recommend_source_letter(enum recommend_source source)
{
    return sources[source].letter;
}

void recommend_free(struct recommendation *recommendation)
{
    free(recommendation->candidates);
    recommendation->candidates = NULL;
    recommendation->n = 0;
}
