/* tuner/emit_quote.h -- any bytes as one word of a shell, one Python literal, or one line of a comment. */
#ifndef SPTUNE_TUNER_EMIT_QUOTE_H
#define SPTUNE_TUNER_EMIT_QUOTE_H

#include "base/text.h"

void quote_shell(struct text *out, const char *word);
/* A str literal. Bytes that are not UTF-8 become the surrogates by which Python names such files. */
void quote_python(struct text *out, const char *word);
/* Printable ASCII alone, at most `width` characters: YAML, Python and shells differ in what else ends a comment. */
void quote_comment(struct text *out, const char *word, int width);

#endif
