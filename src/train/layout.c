/* train/layout.c -- places of parameters. */
#include "train/layout.h"

#include "base/mem.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

static void add(struct layout *layout, int unit, int kind, const char *name, int64_t rows, int64_t cols, bool matrix)
{
    struct layout_unit *u = &layout->unit[unit];
    struct layout_tensor *t = &layout->tensor[layout->tensors++];
    *t = (struct layout_tensor){
        .unit = unit, .kind = kind, .rows = rows, .cols = cols, .matrix = matrix, .offset = u->elems};
    text_print(t->name, sizeof t->name, "%s", name);
    u->n++;
    u->elems += (rows * cols + LAYOUT_ALIGN - 1) / LAYOUT_ALIGN * LAYOUT_ALIGN;
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
        add(layout, 1 + layer, t, name, rows, cols, rows > 1);
    }
}

static void fill(struct layout *layout)
{
    const struct model *m = &layout->model;
    int last = layout->units - 1;
    for (int unit = 0; unit < layout->units; unit++) {
        layout->unit[unit].first = layout->tensors;
        if (unit == 0)
            add(layout, 0, -1, "model.embed_tokens.weight", m->vocab, m->hidden, true);
        else if (unit < last)
            add_layer(layout, unit - 1);
    }
    add(layout, last, -1, "model.norm.weight", 1, m->hidden, false);
    if (!m->tied)
        add(layout, last, -1, "lm_head.weight", m->vocab, m->hidden, true);
}

enum status layout_create(const struct model *model, enum dtype dtype, struct layout *out)
{
    struct layout layout = {.model = *model, .units = model->layers + 2};
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

const struct layout_tensor *layout_find(const struct layout *layout, const char *name)
{
    for (int t = 0; t < layout->tensors; t++)
        if (strcmp(layout->tensor[t].name, name) == 0)
            return &layout->tensor[t];
    return NULL;
}

void layout_layer(const struct layout *layout, int layer, const void *base, int elem_bytes,
                  const void *of[BLOCK_TENSORS])
{
    const struct layout_unit *unit = &layout->unit[1 + layer];
    for (int t = 0; t < BLOCK_TENSORS; t++)
        of[t] = NULL;
    for (int i = unit->first; i < unit->first + unit->n; i++)
        of[layout->tensor[i].kind] = (const char *)base + layout->tensor[i].offset * elem_bytes;
}
