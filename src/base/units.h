/* base/units.h -- numbers as people write them, in and out.
 *
 * tokens, heads, counts:  exact integers or k M G = 1024 steps ("128k" is 131,072)
 * message bytes:          the same
 * memory:                 needs TiB GiB MiB KiB (binary) or TB GB MB KB (10^n); a bare number is refused. Decimals as
 *                         screens show them (79.6GiB, 79.6 GiB) are taken; part of a byte is dropped
 * durations:              10s 5m 1h 250ms 7us
 * lists:                  comma lists and ranges: "1k,4k", "1k..8G*2" (geometric), "2..8+2" (arithmetic), "1..4" (+1)
 * Parsers take the option's name for the message and give STATUS_USAGE with WHERE and HINT set. Nothing else is
 * rounded: "1.5k" is 1,536, "1.5" heads are refused.
 */
#ifndef SPTUNE_BASE_UNITS_H
#define SPTUNE_BASE_UNITS_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

enum { UNITS_LIST_MAX = 4096 }; /* more cells than that in one list is a mistake, and said so */

enum status units_parse_count(const char *text, const char *option, int64_t min, int64_t max, int64_t *out);
enum status units_parse_memory(const char *text, const char *option, int64_t *out_bytes);
enum status units_parse_duration(const char *text, const char *option, int64_t *out_us);
enum status units_parse_double(const char *text, const char *option, double min, double max, double *out);
enum status units_parse_percent(const char *text, const char *option, double *out_fraction); /* "50%" -> 0.5 */
/* *out is malloc'ed, strictly in the order given. */
enum status units_parse_list(const char *text, const char *option, int64_t min, int64_t max, int64_t **out, int *out_n);

/* Each writes into buf (at least 32 bytes) and returns it. */
enum { UNITS_BUF = 40 };
char *units_format_count(int64_t n, char *buf);             /* 131,072 */
char *units_format_short(int64_t n, char *buf);             /* 128k when a whole number of 1024 steps, else 131,000 */
char *units_format_bytes(double bytes, char *buf);          /* 40.7 GiB */
char *units_format_us(double us, char *buf);                /* 117 us, 39.8 s */
/* No more of it than an interval from lo to hi carries: 43h00m. */
char *units_format_us_measured(double us, double lo, double hi, char *buf);
char *units_format_rate(double GBps, char *buf);            /* 727 GB/s */
/* A value with no more significant digits than its 95 % interval [lo, hi] carries. */
char *units_format_measured(double value, double lo, double hi, char *buf);

#endif
