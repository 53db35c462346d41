/* topo/svg.h -- the few shapes that a picture of a machine needs, as SVG with styles by class. Inside this room only.
 *
 * Coordinates are pixels. The page grows with what is drawn. All text is escaped here and nowhere else.
 */
#ifndef SPTUNE_TOPO_SVG_H
#define SPTUNE_TOPO_SVG_H

#include "base/text.h"

struct svg {
    struct text body;
    int right, bottom; /* of everything drawn */
};

void svg_box(struct svg *svg, const char *classes, int x, int y, int w, int h);
void svg_line(struct svg *svg, const char *classes, int x1, int y1, int x2, int y2);
/* From (x1, y) down by `depth` and up to (x2, y). */
void svg_arc(struct svg *svg, const char *classes, int x1, int x2, int y, int depth, int width);
/* classes pick size, weight and anchor; text longer than `room` pixels is cut, room 0 for any length. */
void svg_text(struct svg *svg, const char *classes, int x, int y, int room, const char *fmt, ...)
    __attribute__((format(printf, 6, 7)));
/* A vertical word, reading upwards, centred at x, y. */
void svg_text_up(struct svg *svg, const char *classes, int x, int y, const char *word);
/* Everything until svg_close belongs together and shows `tip` when pointed at. */
void svg_open(struct svg *svg, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void svg_close(struct svg *svg);

/* The whole document: the shapes with `style` (CSS), a title and a description; *out is free()d by the caller. svg is
 * released in every case. */
enum status svg_finish(struct svg *svg, const char *style, const char *title, const char *description, char **out);

#endif
