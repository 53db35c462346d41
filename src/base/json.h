/* base/json.h -- jansson with our error texts and the envelope that every document shares.
 *
 * Parsing names file, line and column. Depth is limited (JSON_DEPTH) so that a hostile file cannot exhaust the stack.
 * Typed getters take the path of the document for their message; a missing or ill-typed key is STATUS_USAGE.
 * json_t values are reference counted: functions returning json_t* give a new reference (NULL only when memory
 * ran out).
 */
#ifndef SPTUNE_BASE_JSON_H
#define SPTUNE_BASE_JSON_H

#include "base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum { JSON_DEPTH = 64 };

enum status json_parse(const char *text, size_t len, const char *where, json_t **out);
/* Text that begins at this line (from 1) of `where`. */
enum status json_parse_line(const char *text, size_t len, const char *where, int line, json_t **out);
enum status json_read(const char *path, json_t **out);          /* "-" is stdin; at most 64 MiB */
enum status json_write(const char *path, const json_t *root);   /* atomic, indented, sorted as inserted */
enum status json_print(const json_t *root);                     /* to stdout, one document, newline */

/* As json_write and json_print write it: two-space indent, or one line. free() releases. */
enum status json_format(const json_t *root, bool indent, char **out);

/* {schema: "sptune.<noun>/1", version, command, started, seed, machine, warnings: [...]}; fields follow. */
struct json_envelope {
    const char *command; /* the command line as typed */
    const char *started; /* ISO 8601 UTC */
    const char *machine; /* fingerprint, "" when unknown */
    int64_t seed;
};
/* Make it when the answer is complete: `warnings` are those given so far. */
json_t *json_document(const char *noun, const struct json_envelope *envelope);
/* sptune.error/1 from the thread's status message. */
json_t *json_error(const struct json_envelope *envelope, const struct status_message *message);

/* A key that must be there and not null. Borrowed. */
enum status json_need(const json_t *object, const char *key, const char *where, json_t **out);
/* Integers may be written as floats ("8.0") when whole. null and absent give `fallback`. */
enum status json_int(const json_t *object, const char *key, const char *where, int64_t fallback, int64_t *out);
enum status json_double(const json_t *object, const char *key, const char *where, double fallback, double *out);
enum status json_bool(const json_t *object, const char *key, const char *where, bool fallback, bool *out);
enum status json_str(const json_t *object, const char *key, const char *where, const char *fallback, const char **out);
/* Doubles rounded to `digits` significant digits, so that documents stay readable; NaN and inf become null. */
json_t *json_num(double value, int digits);

#endif
