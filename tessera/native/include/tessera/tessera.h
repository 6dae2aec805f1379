/* tessera.h: load bundles and run their entry points, without Python.  C99 and C++11.
 *
 * docs/abi.md is the normative description.  Every struct begins with its size and version; integers have fixed
 * widths; strides are in bytes.  A function that can fail returns a status, and tess_last_error() says why, for the
 * calling thread.  An entry point may be run by several threads at once; results have the bits of Python's run,
 * with any number of threads.
 */
#ifndef TESSERA_H
#define TESSERA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TESS_ABI_VERSION 1u
#define TESS_BUNDLE_VERSION 1u
#define TESS_MAX_RANK 8
#define TESS_MAX_TILES 16

typedef int32_t tess_status_t;
enum {
  TESS_OK = 0,
  TESS_ERROR_ARGUMENT = 1,    /* a pointer is null, or a field of a descriptor is out of range */
  TESS_ERROR_FILE = 2,        /* a file cannot be read, is truncated, damaged or of another format */
  TESS_ERROR_DIGEST = 3,      /* bytes differ from their digest */
  TESS_ERROR_TARGET = 4,      /* there is no machine code for this processor */
  TESS_ERROR_NAME = 5,        /* there is no entry point of this name */
  TESS_ERROR_TYPE = 6,        /* the dtype or rank of a tensor is not what the entry point takes */
  TESS_ERROR_SHAPE = 7,       /* sizes do not fit each other or break a constraint */
  TESS_ERROR_MEMORY = 8,      /* there is not enough memory */
  TESS_ERROR_DEVICE = 9,      /* there is no such device, or its driver failed */
  TESS_ERROR_SINGULAR = 10,   /* an operator or a matrix has no inverse or factor */
  TESS_ERROR_NUMERICS = 11    /* it promises less of its bits than tess_set_numerics asks for */
};

typedef uint32_t tess_dtype_t;
enum {
  TESS_BOOL = 1, TESS_I4 = 2, TESS_I8 = 3, TESS_I16 = 4, TESS_I32 = 5, TESS_I64 = 6, TESS_U8 = 7, TESS_U16 = 8,
  TESS_U32 = 9, TESS_U64 = 10, TESS_F8E4M3 = 11, TESS_F8E5M2 = 12, TESS_F16 = 13, TESS_BF16 = 14, TESS_F32 = 15,
  TESS_F64 = 16, TESS_C64 = 17, TESS_C128 = 18, TESS_TF32 = 19
};

/* Processors; a CUDA device of compute capability 9.0 is TESS_ARCH_CUDA + 90. */
enum { TESS_ARCH_X86_64_V3 = 1, TESS_ARCH_X86_64_V4 = 2, TESS_ARCH_AARCH64 = 3, TESS_ARCH_CUDA = 0x10000 };

/* Devices: 0 is this processor, TESS_DEVICE_CUDA + i the CUDA device i. */
enum { TESS_DEVICE_CPU = 0, TESS_DEVICE_CUDA = 0x100, TESS_MAX_DEVICES = 64 };

/* A tensor in memory. */
typedef struct TessTensorDesc {
  uint32_t size;                     /* sizeof(TessTensorDesc) */
  uint32_t version;                  /* TESS_ABI_VERSION */
  tess_dtype_t dtype;
  uint32_t rank;                     /* at most TESS_MAX_RANK */
  int64_t shape[TESS_MAX_RANK];      /* elements along each axis; those after rank are 0 */
  int64_t strides[TESS_MAX_RANK];    /* bytes between neighbours along each axis */
  uint64_t bytes;                    /* of the memory at data */
  uint32_t device;                   /* whose memory it is: TESS_DEVICE_CPU, TESS_DEVICE_CUDA + i */
  uint32_t flags;                    /* TESS_TENSOR_OWNED: tess_tensor_free gives the memory back */
  void *data;                        /* of 64 bits */
} TessTensorDesc;
#define TESS_TENSOR_OWNED 1u

/* What an entry point takes or returns. */
typedef struct TessValueInfo {
  uint32_t size;
  uint32_t version;
  tess_dtype_t dtype;
  uint32_t rank;
  int64_t shape[TESS_MAX_RANK];      /* -1: a symbolic size */
  char name[64];                     /* ends in 0; longer names are cut */
} TessValueInfo;

/* A tile program that a kernel runs: its primitive and its schedule.  Zero: not known, or of no meaning there. */
enum { TESS_TILE_LOOPS = 0, TESS_TILE_GEMM = 1, TESS_TILE_FFT = 2, TESS_TILE_CONV = 3, TESS_TILE_REDUCE = 4 };
typedef struct TessTileDesc {
  uint32_t size;
  uint32_t version;
  uint32_t primitive;                /* TESS_TILE_... */
  uint32_t block[3];                 /* BM, BN, BK: elements of a block */
  uint32_t warps;
  uint32_t stages;
  uint32_t vector;                   /* bytes of a vector */
  uint32_t swizzle;                  /* 0: none, 1: xor */
  uint64_t instances;                /* how many of them a launch runs */
  uint64_t scratch;                  /* bytes that each thread needs */
} TessTileDesc;

typedef struct TessKernelDesc {
  uint32_t size;
  uint32_t version;
  uint32_t arch;                     /* TESS_ARCH_... */
  uint32_t num_tiles;                /* at most TESS_MAX_TILES */
  char name[64];
  TessTileDesc tiles[TESS_MAX_TILES];
} TessKernelDesc;

/* An operator: a linear map by its representation. */
typedef enum tess_op_repr_t {
  TESS_OP_DENSE = 0,                 /* payload[0]: the matrix */
  TESS_OP_FACTOR = 1,                /* payload: U, S, V* with A = U diag(S) V* */
  TESS_OP_IMPLICIT = 2,              /* tag says which; payload: its parameters */
  TESS_OP_BLOCKSPARSE = 3            /* payload: row pointers, columns, blocks */
} tess_op_repr_t;
enum { TESS_OP_UNITARY = 1, TESS_OP_SELF_ADJOINT = 2, TESS_OP_NORMAL = 4 };
enum { TESS_TAG_NONE = 0, TESS_TAG_IDENTITY = 1, TESS_TAG_ZERO = 2, TESS_TAG_DIAGONAL = 3, TESS_TAG_FFT = 4,
       TESS_TAG_CIRCULANT = 5, TESS_TAG_PERMUTATION = 6 };
typedef struct TessOperatorDesc {
  uint32_t size;
  uint32_t version;
  uint32_t repr;                     /* tess_op_repr_t */
  uint32_t tag;                      /* TESS_TAG_...; 0 unless implicit */
  uint32_t flags;                    /* claims: TESS_OP_UNITARY, ... */
  uint32_t reserved;                 /* 0 */
  int64_t rows;
  int64_t columns;
  TessTensorDesc payload[3];         /* those that a representation does not have are all 0 */
} TessOperatorDesc;

/* A graph of operators, whose structure is kept: leaves, and nodes that make operators of others.  A node names only
 * nodes before it. */
enum {
  TESS_NODE_LEAF = 0,                /* leaves[leaf] */
  TESS_NODE_COMPOSE = 1,             /* A B C ...: the last is applied first */
  TESS_NODE_SUM = 2,                 /* A + B + ... */
  TESS_NODE_SCALE = 3,               /* s A */
  TESS_NODE_ADJOINT = 4,             /* A* */
  TESS_NODE_KRONECKER = 5,           /* A (x) B of two, on row-major vectors */
  TESS_NODE_DIRECT_SUM = 6,          /* A, B, ... on the parts of a vector */
  TESS_NODE_INVERSE = 7,             /* A^-1 */
  TESS_NODE_RESOLVENT = 8            /* (s I - A)^-1 */
};
typedef struct TessOperatorNode {
  uint32_t size;
  uint32_t version;
  uint32_t kind;                     /* TESS_NODE_... */
  uint32_t leaf;                     /* of a leaf: which; 0 otherwise */
  uint32_t first;                    /* where its operands begin in the operands of the graph */
  uint32_t count;                    /* how many it has; 0 of a leaf */
  double scalar[2];                  /* s: real and imaginary part; 0 where there is none */
} TessOperatorNode;
typedef struct TessOperatorGraph {
  uint32_t size;
  uint32_t version;
  uint32_t leaf_count;
  uint32_t node_count;               /* at most TESS_MAX_NODES */
  uint32_t operand_count;
  uint32_t root;                     /* the node that is the operator */
  const TessOperatorDesc *leaves;
  const TessOperatorNode *nodes;
  const uint32_t *operands;          /* numbers of nodes */
} TessOperatorGraph;
#define TESS_MAX_NODES 4096

/* Layouts are part of the ABI. */
#if defined(__cplusplus)
#define TESS_ASSERT(name, test) static_assert(test, #name)
#else
#define TESS_ASSERT(name, test) typedef char tess_assert_##name[(test) ? 1 : -1]
#endif
TESS_ASSERT(tensor_size, sizeof(TessTensorDesc) == 168);
TESS_ASSERT(tensor_data, offsetof(TessTensorDesc, data) == 160);
TESS_ASSERT(value_size, sizeof(TessValueInfo) == 144);
TESS_ASSERT(tile_size, sizeof(TessTileDesc) == 56);
TESS_ASSERT(kernel_size, sizeof(TessKernelDesc) == 80 + 56 * TESS_MAX_TILES);
TESS_ASSERT(operator_size, sizeof(TessOperatorDesc) == 40 + 3 * 168);
TESS_ASSERT(operator_payload, offsetof(TessOperatorDesc, payload) == 40);
TESS_ASSERT(node_size, sizeof(TessOperatorNode) == 40);
TESS_ASSERT(node_scalar, offsetof(TessOperatorNode, scalar) == 24);
TESS_ASSERT(graph_size, sizeof(TessOperatorGraph) == 48);
TESS_ASSERT(graph_leaves, offsetof(TessOperatorGraph, leaves) == 24);

typedef struct TessBundle TessBundle;
typedef struct TessEntry TessEntry;

/* Versions, features, errors. */
uint32_t tess_abi_version(void);
int tess_has_feature(const char *name);          /* "cpu:x86-64-v3", "bundle-1", ...: 1 if there is such a feature */
const char *tess_last_error(void);               /* of this thread; "" when nothing failed */

/* Threads: how many a run may use.  0: as many as there are cores, which is so at the start. */
tess_status_t tess_set_threads(uint32_t count);
uint32_t tess_threads(void);

/* Numerics: what every run must promise of its bits, "fast" (nothing, which is so at the start), "deterministic" (they
 * depend on the program and its inputs alone) or "strict" (on every kind of processor).  The order of sums is in the
 * machine code of a bundle, so that nothing changes it afterwards: runs of an entry point whose code promises less
 * (tess_entry_numerics) are refused, and so are operators under "strict". */
tess_status_t tess_set_numerics(const char *mode);
const char *tess_numerics(void);

/* Bundles.  What is not verified is not run: TESS_OPEN_UNVERIFIED bundles can be looked at only. */
#define TESS_OPEN_UNVERIFIED 1u                  /* read no digests */
#define TESS_OPEN_TRUST_WEIGHTS 2u               /* verify all but the weights, which are mapped and not read */
tess_status_t tess_bundle_open(const char *path, uint32_t flags, TessBundle **out);
void tess_bundle_close(TessBundle *bundle);      /* and all of its entry points */
tess_status_t tess_bundle_digest(const TessBundle *bundle, uint8_t digest[32]);
tess_status_t tess_bundle_manifest(const TessBundle *bundle, const char **text, uint64_t *bytes);

/* Entry points.  A null name: the only one.  On a CUDA device the bundle must have code for its architecture; the
 * driver (libcuda.so.1) is looked for at run time. */
tess_status_t tess_entry_open(TessBundle *bundle, const char *name, TessEntry **out);
tess_status_t tess_entry_open_on(TessBundle *bundle, const char *name, uint32_t device, TessEntry **out);
uint32_t tess_entry_device(const TessEntry *entry);
const char *tess_entry_target(const TessEntry *entry);
const char *tess_entry_numerics(const TessEntry *entry);
uint32_t tess_entry_input_count(const TessEntry *entry);
uint32_t tess_entry_output_count(const TessEntry *entry);
uint32_t tess_entry_kernel_count(const TessEntry *entry);
tess_status_t tess_entry_input(const TessEntry *entry, uint32_t i, TessValueInfo *out);
tess_status_t tess_entry_output(const TessEntry *entry, uint32_t i, TessValueInfo *out);
tess_status_t tess_entry_kernel(const TessEntry *entry, uint32_t i, TessKernelDesc *out);

/* The types of the results for these inputs, and how many bytes a run needs beside them. */
tess_status_t tess_entry_plan(TessEntry *entry, const TessTensorDesc *inputs, uint32_t input_count,
                              TessTensorDesc *outputs, uint32_t output_count, uint64_t *bytes);
/* Run.  An output whose data is null gets memory, which tess_tensor_free gives back; others are row-major and may
 * not overlap an input or each other. */
tess_status_t tess_entry_run(TessEntry *entry, const TessTensorDesc *inputs, uint32_t input_count,
                             TessTensorDesc *outputs, uint32_t output_count);

/* Devices, memory, streams and events.  What is given to a stream is done in order; streams of this processor do it
 * before the call returns.  A run on a stream waits only when an output lies in this processor's memory.  A null stream
 * is the usual one of the entry point's device. */
typedef struct TessStream TessStream;
typedef struct TessEvent TessEvent;
tess_status_t tess_device_count(uint32_t kind, uint32_t *count); /* of TESS_DEVICE_CPU or TESS_DEVICE_CUDA */
tess_status_t tess_memory_alloc(uint32_t device, uint64_t bytes, void **out);
tess_status_t tess_memory_free(uint32_t device, void *memory);
tess_status_t tess_memory_copy(void *to, uint32_t to_device, const void *from, uint32_t from_device, uint64_t bytes);
tess_status_t tess_stream_create(uint32_t device, TessStream **out);
tess_status_t tess_stream_synchronize(TessStream *stream);
tess_status_t tess_stream_wait(TessStream *stream, TessEvent *event); /* for what came before the event was recorded */
void tess_stream_destroy(TessStream *stream);
tess_status_t tess_event_create(uint32_t device, TessEvent **out);
tess_status_t tess_event_record(TessEvent *event, TessStream *stream);
tess_status_t tess_event_synchronize(TessEvent *event);
tess_status_t tess_event_elapsed(TessEvent *start, TessEvent *end, double *seconds);
void tess_event_destroy(TessEvent *event);
tess_status_t tess_entry_run_on(TessEntry *entry, TessStream *stream, const TessTensorDesc *inputs, uint32_t input_count,
                                TessTensorDesc *outputs, uint32_t output_count);

/* Tensors: a row-major one around memory of the caller, or around none (data null). */
tess_status_t tess_tensor_init(TessTensorDesc *out, tess_dtype_t dtype, uint32_t rank, const int64_t *shape,
                               void *data);
void tess_tensor_free(TessTensorDesc *tensor);
tess_status_t tess_tensor_validate(const TessTensorDesc *tensor);
tess_status_t tess_operator_validate(const TessOperatorDesc *op);
tess_status_t tess_tile_validate(const TessTileDesc *tile);
tess_status_t tess_kernel_validate(const TessKernelDesc *kernel);

/* Operators on vectors of f32, f64, c64 or c128, or on the columns of a matrix: x has as many rows as the operator
 * columns, and y, whose memory the caller has, as many as its rows.  Computed in double precision by the structure of the
 * operator and rounded once.  Solving: the x with A x = b; operators without a structure to use become matrices, of at
 * most 8192 rows. */
tess_status_t tess_graph_validate(const TessOperatorGraph *graph, int64_t *rows, int64_t *columns);
tess_status_t tess_graph_apply(const TessOperatorGraph *graph, const TessTensorDesc *x, TessTensorDesc *y);
tess_status_t tess_graph_solve(const TessOperatorGraph *graph, const TessTensorDesc *b, TessTensorDesc *x);
tess_status_t tess_operator_apply(const TessOperatorDesc *op, const TessTensorDesc *x, TessTensorDesc *y);
tess_status_t tess_operator_solve(const TessOperatorDesc *op, const TessTensorDesc *b, TessTensorDesc *x);

#ifdef __cplusplus
}
#endif
#endif
