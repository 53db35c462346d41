/* train/layout.c -- places of parameters. */
#include "train/layout.h"

#include "base/mem.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

/* Where it lies follows: place_all. */
static void add(struct layout *layout, int unit, int kind, const char *name, int64_t rows, int64_t cols)
{
    struct layout_unit *u = &layout->unit[unit];
    struct layout_tensor *t = &layout->tensor[layout->tensors++];
    *t = (struct layout_tensor){.unit = unit,
                                .kind = kind,
                                .rows = rows,
                                .cols = cols,
                                .whole_rows = rows,
                                .whole_cols = cols,
                                .cut = {.parts = 1, .copies = 1},
                                .matrix = rows > 1};
    text_print(t->name, sizeof t->name, "%s", name);
    if (kind >= 0) {
        t->cut = block_cut_of(&layout->block, layout->ways, (enum block_tensor)kind);
        t->rows /= t->cut.dim == 0 ? t->cut.parts : 1;
        t->cols /= t->cut.dim == 1 ? t->cut.parts : 1;
    }
    u->n++;
    layout->params += rows * cols;
}

static void add_layer(struct layout *layout, int layer)
{
    for (int t = 0; t < BLOCK_TENSORS; t++) {
        char name[LAYOUT_NAME];
        int64_t rows, cols;
        if (!block_tensor_shape(&layout->block, (enum block_tensor)t, &rows, &cols))
            continue;
        text_print(name, sizeof name, "model.layers.%d.%s", layer, block_tensor_name((enum block_tensor)t));
        add(layout, 1 + layer, t, name, rows, cols);
    }
}

/* Tensors of a unit on `copies` ranks each, in order, behind what is there. */
static void place_all(const struct layout *layout, struct layout_unit *unit, int copies)
{
    for (int i = unit->first; i < unit->first + unit->n; i++) {
        struct layout_tensor *t = &layout->tensor[i];
        if (t->cut.copies != copies)
            continue;
        t->offset = unit->elems;
        unit->elems += (t->rows * t->cols + LAYOUT_ALIGN - 1) / LAYOUT_ALIGN * LAYOUT_ALIGN;
    }
}

static void place_unit(const struct layout *layout, struct layout_unit *unit)
{
    if (layout->ways > 1) {
        place_all(layout, unit, layout->ways);
        unit->alike = unit->elems;
    }
    if (layout->copies > 1 && layout->copies < layout->ways) {
        place_all(layout, unit, layout->copies);
        unit->copied = unit->elems - unit->alike;
    }
    place_all(layout, unit, 1);
    if (layout->place > 0)
        unit->counted = unit->alike + (layout->place % layout->copies > 0 ? unit->copied : 0);
}

static void fill(struct layout *layout)
{
    const struct model *m = &layout->model;
    int last = layout->units - 1;
    for (int unit = 0; unit < layout->units; unit++) {
        layout->unit[unit].first = layout->tensors;
        if (unit == 0)
            add(layout, 0, -1, "model.embed_tokens.weight", m->vocab, m->hidden);
        else if (unit < last)
            add_layer(layout, unit - 1);
    }
    add(layout, last, -1, "model.norm.weight", 1, m->hidden);
    if (!m->tied)
        add(layout, last, -1, "lm_head.weight", m->vocab, m->hidden);
    for (int unit = 0; unit < layout->units; unit++)
        place_unit(layout, &layout->unit[unit]);
}

enum status layout_create(const struct model *model, enum dtype dtype, struct layout *out)
{
    return layout_create_cut(model, dtype, 1, 0, out);
}

enum status layout_create_cut(const struct model *model, enum dtype dtype, int ways, int place, struct layout *out)
{
    struct layout layout = {.model = *model, .ways = ways, .place = place, .units = model->layers + 2};
    if (model->unlike[0] != '\0')
        return HINT(FAIL(STATUS_UNSUPPORTED, "%s cannot be trained here: %s", model->name, model->unlike),
                    "Llama, Mistral, Qwen2 and Qwen3 can");
    if (model->vocab < 1 || model->ffn < 1)
        return HINT(FAIL(STATUS_UNSUPPORTED, "%s has no %s", model->name, model->vocab < 1 ? "vocabulary" : "MLP"),
                    "a whole config.json is needed");
    if (model->head_dim % 2 != 0)
        return FAIL(STATUS_UNSUPPORTED, "%s: RoPE turns pairs; head_dim is %d", model->name, model->head_dim);
    layout.block = (struct block_shape){.hidden = model->hidden,
                                        .ffn = model->ffn,
                                        .heads = model->heads,
                                        .kv_heads = model->kv_heads,
                                        .head_dim = model->head_dim,
                                        .qkv_bias = model->qkv_bias,
                                        .qk_norm = model->qk_norm,
                                        .eps = (float)model->norm_eps,
                                        .dtype = dtype};
    TRY(block_cut_check(&layout.block, ways));
    layout.copies = model_kv_copies(model->kv_heads, ways);
    enum status status =
        mem_alloc((size_t)layout.units * sizeof *layout.unit, "units of parameters", (void **)&layout.unit);
    if (status == STATUS_OK)
        status = mem_alloc((size_t)(layout.units * BLOCK_TENSORS + 3) * sizeof *layout.tensor, "parameters",
                           (void **)&layout.tensor);
    if (status != STATUS_OK) {
        layout_free(&layout);
        return status;
    }
    fill(&layout);
    *out = layout;
    return STATUS_OK;
}

void layout_free(struct layout *layout)
{
    free(layout->unit);
    free(layout->tensor);
    layout->unit = NULL;
    layout->tensor = NULL;
}

int layout_head_unit(const struct layout *layout)
{
    return layout->model.tied ? 0 : layout->units - 1;
}

int64_t layout_head_offset(const struct layout *layout)
{
    return layout->model.tied ? 0 : layout->tensor[layout->unit[layout->units - 1].first + 1].offset;
}

int64_t layout_norm_offset(const struct layout *layout)
{
    return layout->tensor[layout->unit[layout->units - 1].first].offset;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int64_t layout_run(const struct layout *layout, const struct layout_tensor *t, int64_t from, int64_t n, int64_t *whole)
{
    int64_t part = layout->place / t->cut.copies;
    *whole = from;
    if (t->cut.parts == 1)
        return n;
    if (t->cut.dim == 0) {
        *whole = part * t->rows * t->cols + from;
        return n;
    }
    *whole = from / t->cols * t->whole_cols + part * t->cols + from % t->cols;
    return least(n, t->cols - from % t->cols);
}

int64_t layout_piece(const struct layout_tensor *t, int64_t from, int64_t n, int *place, int64_t *at)
{
    int64_t piece = t->rows * t->cols, row = from / t->whole_cols, col = from % t->whole_cols;
    *place = 0;
    *at = from;
    if (t->cut.parts == 1)
        return n;
    if (t->cut.dim == 0) {
        *place = (int)(from / piece) * t->cut.copies;
        *at = from % piece;
        return least(n, piece - *at);
    }
    *place = (int)(col / t->cols) * t->cut.copies;
    *at = row * t->cols + col % t->cols;
    return least(n, t->cols - col % t->cols);
}

void layout_layer(const struct layout *layout, int layer, int64_t offset[BLOCK_TENSORS])
{
    const struct layout_unit *unit = &layout->unit[1 + layer];
    for (int t = 0; t < BLOCK_TENSORS; t++)
        offset[t] = -1;
    for (int i = unit->first; i < unit->first + unit->n; i++)
        offset[layout->tensor[i].kind] = layout->tensor[i].offset;
}
