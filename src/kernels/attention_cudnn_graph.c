/* kernels/attention_cudnn_graph.c -- the words of cuDNN's graph language: tensors and operations. */
#include "kernels/attention_cudnn.h"

#include <string.h>

static void fail(struct cudnn_graph *graph, cudnnStatus_t error, const char *what)
{
    if (error == CUDNN_STATUS_SUCCESS || graph->error != CUDNN_STATUS_SUCCESS)
        return;
    graph->error = error;
    graph->failed = what;
}

cudnn_node cudnn_create(struct cudnn_graph *graph, cudnnBackendDescriptorType_t type)
{
    cudnn_node node = NULL;
    if (graph->error != CUDNN_STATUS_SUCCESS)
        return NULL;
    if (graph->nowned == CUDNN_DESCRIPTORS) {
        fail(graph, CUDNN_STATUS_INTERNAL_ERROR, "room for descriptors");
        return NULL;
    }
    fail(graph, graph->api->cudnnBackendCreateDescriptor(type, &node), "a descriptor");
    if (node)
        graph->owned[graph->nowned++] = node;
    return node;
}

void cudnn_set(struct cudnn_graph *graph, cudnn_node node, cudnnBackendAttributeName_t name,
               cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    if (graph->error == CUDNN_STATUS_SUCCESS)
        fail(graph, graph->api->cudnnBackendSetAttribute(node, name, type, count, values), "an attribute");
}

static void set_node(struct cudnn_graph *graph, cudnn_node node, cudnnBackendAttributeName_t name, cudnn_node value)
{
    if (value)
        cudnn_set(graph, node, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

void cudnn_finish(struct cudnn_graph *graph, cudnn_node node, const char *what)
{
    if (graph->error == CUDNN_STATUS_SUCCESS)
        fail(graph, graph->api->cudnnBackendFinalize(node), what);
}

void cudnn_graph_free(struct cudnn_graph *graph)
{
    while (graph->nowned > 0)
        (void)graph->api->cudnnBackendDestroyDescriptor(graph->owned[--graph->nowned]);
}

struct cudnn_dims cudnn_dense(int64_t batch, int64_t heads, int64_t rows, int64_t columns)
{
    return (struct cudnn_dims){{batch, heads, rows, columns}, {heads * rows * columns, rows * columns, columns, 1}};
}

struct cudnn_dims cudnn_swapped(struct cudnn_dims dims)
{
    return (struct cudnn_dims){{dims.n[0], dims.n[1], dims.n[3], dims.n[2]},
                               {dims.strides[0], dims.strides[1], dims.strides[3], dims.strides[2]}};
}

static cudnn_node tensor(struct cudnn_graph *graph, int64_t name, cudnnDataType_t type, struct cudnn_dims dims,
                         cudnn_node starts, bool inner, bool by_value)
{
    cudnn_node node = cudnn_create(graph, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    const bool any_float = name == CUDNN_STATS && starts == NULL; /* a head group's begin behind an odd number of rows */
    int64_t alignment = any_float ? 4 : 16;
    cudnn_set(graph, node, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &name);
    cudnn_set(graph, node, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    cudnn_set(graph, node, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims.n);
    cudnn_set(graph, node, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, dims.strides);
    cudnn_set(graph, node, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    cudnn_set(graph, node, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &inner);
    cudnn_set(graph, node, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    set_node(graph, node, CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC, starts);
    cudnn_finish(graph, node, "a tensor");
    return node;
}

cudnn_node cudnn_outer(struct cudnn_graph *graph, enum cudnn_tensor name, cudnnDataType_t type, struct cudnn_dims dims,
                       cudnn_node starts)
{
    graph->used[name] = true;
    return tensor(graph, name, type, dims, starts, false, false);
}

cudnn_node cudnn_value(struct cudnn_graph *graph, enum cudnn_tensor name, cudnnDataType_t type)
{
    graph->used[name] = true;
    return tensor(graph, name, type, (struct cudnn_dims){{1, 1, 1, 1}, {1, 1, 1, 1}}, NULL, false, true);
}

cudnn_node cudnn_inner(struct cudnn_graph *graph, cudnnDataType_t type, struct cudnn_dims dims, cudnn_node starts)
{
    return tensor(graph, CUDNN_TENSORS + graph->next++, type, dims, starts, true, false);
}

static void add(struct cudnn_graph *graph, cudnn_node operation, const char *what)
{
    cudnn_finish(graph, operation, what);
    if (graph->noperations == CUDNN_OPERATIONS)
        fail(graph, CUDNN_STATUS_INTERNAL_ERROR, "room for operations");
    else
        graph->operations[graph->noperations++] = operation;
}

void cudnn_pointwise(struct cudnn_graph *graph, cudnnPointwiseMode_t mode, cudnnDataType_t type, int64_t axis,
                     cudnn_node x, cudnn_node b, cudnn_node t, cudnn_node y)
{
    cudnn_node how = cudnn_create(graph, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    cudnn_set(graph, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    cudnn_set(graph, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &type);
    if (axis >= 0)
        cudnn_set(graph, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    cudnn_finish(graph, how, "a pointwise mode");
    cudnn_node operation = cudnn_create(graph, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_node(graph, operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    set_node(graph, operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    set_node(graph, operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    set_node(graph, operation, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
    set_node(graph, operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    add(graph, operation, "a pointwise operation");
}

void cudnn_matmul(struct cudnn_graph *graph, cudnn_node a, cudnn_node b, cudnn_node c, struct cudnn_lengths lengths)
{
    cudnn_node how = cudnn_create(graph, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    double zero = 0.0;
    cudnn_set(graph, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    if (lengths.zero_padded)
        cudnn_set(graph, how, CUDNN_ATTR_MATMUL_PADDING_VALUE, CUDNN_TYPE_DOUBLE, 1, &zero);
    cudnn_finish(graph, how, "a matmul mode");
    cudnn_node operation = cudnn_create(graph, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_node(graph, operation, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
    set_node(graph, operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    set_node(graph, operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    set_node(graph, operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    set_node(graph, operation, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, lengths.rows);
    set_node(graph, operation, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, lengths.columns);
    set_node(graph, operation, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, lengths.depth);
    add(graph, operation, "a matmul");
}

void cudnn_reduce(struct cudnn_graph *graph, cudnnReduceTensorOp_t op, cudnn_node x, cudnn_node y)
{
    cudnn_node how = cudnn_create(graph, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    cudnn_set(graph, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &op);
    cudnn_set(graph, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    cudnn_finish(graph, how, "a reduction mode");
    cudnn_node operation = cudnn_create(graph, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_node(graph, operation, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
    set_node(graph, operation, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    set_node(graph, operation, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    add(graph, operation, "a reduction");
}

void cudnn_reshape(struct cudnn_graph *graph, cudnn_node x, cudnn_node y)
{
    cudnn_node operation = cudnn_create(graph, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set_node(graph, operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    set_node(graph, operation, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    add(graph, operation, "a reshape");
}
