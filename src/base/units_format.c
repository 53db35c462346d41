/* base/units_format.c -- numbers as people read them; buffers hold UNITS_BUF bytes (32 are enough). */
#include "base/units.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { FIT = 32 };

/* Group the digits of a plain decimal number in threes, in place. */
static void add_commas(char *buf)
{
    size_t start = buf[0] == '-', digits = strspn(buf + start, "0123456789");
    for (size_t i = digits; i > 3; i -= 3) {
        char *at = buf + start + i - 3;
        if (strlen(buf) + 1 >= FIT)
            return;
        memmove(at + 1, at, strlen(at) + 1);
        *at = ',';
    }
}

char *units_format_count(int64_t n, char *buf)
{
    snprintf(buf, FIT, "%lld", (long long)n);
    add_commas(buf);
    return buf;
}

char *units_format_short(int64_t n, char *buf)
{
    static const char names[] = "kMG";
    int step = -1;
    int64_t value = n;
    while (value > 0 && value % 1024 == 0 && step < 2) {
        value /= 1024;
        step++;
    }
    units_format_count(value, buf);
    if (step >= 0)
        snprintf(buf + strlen(buf), 2, "%c", names[step]);
    return buf;
}

/* Three significant digits, none behind the point when the value is whole. */
static void three_digits(double value, const char *unit, char *buf)
{
    double size = fabs(value);
    int decimals = size == floor(size) || size >= 99.95 ? 0 : size >= 9.995 ? 1 : size >= 0.9995 ? 2 : 3;
    if (!isfinite(value))
        snprintf(buf, FIT, "- %s", unit);
    else if (size >= 1e15 || (size > 0 && size < 0.0995))
        snprintf(buf, FIT, size < 1 ? "%.2g %s" : "%.2e %s", value, unit);
    else
        snprintf(buf, FIT, "%.*f %s", decimals, value, unit);
    add_commas(buf);
}

char *units_format_bytes(double bytes, char *buf)
{
    static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    int step = 0;
    while (fabs(bytes) >= 1023.5 && step < 6) {
        bytes /= 1024;
        step++;
    }
    three_digits(step ? bytes : round(bytes), names[step], buf);
    return buf;
}

char *units_format_us(double us, char *buf)
{
    double size = fabs(us);
    if (size < 999.5 || !isfinite(us))
        three_digits(us, "us", buf);
    else if (size < 999.5e3)
        three_digits(us / 1e3, "ms", buf);
    else if (size < 119.5e6)
        three_digits(us / 1e6, "s", buf);
    else if (size < 3599.5e6)
        snprintf(buf, FIT, "%.0fm%02.0fs", trunc(round(us / 1e6) / 60), fmod(round(size / 1e6), 60));
    else if (size < 1e18)
        snprintf(buf, FIT, "%.0fh%02.0fm", trunc(round(us / 60e6) / 60), fmod(round(size / 60e6), 60));
    else
        three_digits(us / 1e6, "s", buf);
    return buf;
}

/* Minutes and hours are rounded by steps of their own. */
char *units_format_us_measured(double us, double lo, double hi, char *buf)
{
    static const double steps[] = {36000e6, 3600e6, 600e6, 60e6, 10e6, 1e6};
    double half = fabs(hi - lo) / 2;
    if (!isfinite(us) || !isfinite(half) || !(half > 0))
        return units_format_us(us, buf);
    double unit = pow(10, floor(log10(half)) - 1);
    if (fabs(us) >= 119.5e6)
        for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
            if (steps[i] <= unit) {
                unit = steps[i];
                break;
            }
    double rounded = round(us / unit) * unit;
    return units_format_us(rounded != 0 ? rounded : us, buf);
}

char *units_format_rate(double GBps, char *buf)
{
    three_digits(GBps, "GB/s", buf);
    return buf;
}

/* The place of the last digit worth printing is one below the leading digit of the interval's half width. */
char *units_format_measured(double value, double lo, double hi, char *buf)
{
    double half = fabs(hi - lo) / 2;
    if (!isfinite(value)) {
        snprintf(buf, FIT, "-");
        return buf;
    }
    if (value == 0.0) {
        snprintf(buf, FIT, "0");
        return buf;
    }
    int top = (int)floor(log10(fabs(value)));
    int place = isfinite(half) && half > 0 ? (int)floor(log10(half)) - 1 : top - 3;
    if (place < top - 5)
        place = top - 5;
    if (place > top)
        place = top;
    if (top >= 15 || place < -9) {
        snprintf(buf, FIT, "%.*e", top - place, value);
        return buf;
    }
    double unit = pow(10.0, place);
    snprintf(buf, FIT, "%.*f", place < 0 ? -place : 0, place > 0 ? round(value / unit) * unit : value);
    add_commas(buf);
    return buf;
}
