/* A CUDA driver for tests: memory of this processor, kernels by name, every handle, address and size checked.
 *
 * Code is the text "FAKE".  Kernels: scale(x, y, n, a), add(x, y, z, n), boxed(map of x, rows, columns, strides, y),
 * hungry(x, y, n) which wants scratch of its own.  Each has two more addresses, as Triton's kernels have.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 256, OK = 0, INVALID = 1, NO_MEMORY = 2, NOT_FOUND = 500 };
static struct { char *at; size_t bytes; } block[MOST];
static int depth, modules, streams, live, calls;

/* The call whose number FAKE_CUDA_FAILS has fails, and what a program leaves behind ends it with status 7. */
static int fails(void) {
  const char *which = getenv("FAKE_CUDA_FAILS");
  return which && ++calls == atoi(which);
}
#define FAILS fails()

__attribute__((destructor)) static void at_the_end(void) {
  int i, blocks = 0;
  for (i = 0; i < MOST; i++) blocks += block[i].at != NULL;
  if (!getenv("FAKE_CUDA_COUNTS") || !(depth || modules || live || blocks)) return;
  fprintf(stderr, "left: %d contexts, %d modules, %d streams and events, %d blocks\n", depth, modules, live, blocks);
  _Exit(7);
}
static const char *const names[] = {"scale", "add", "boxed", "hungry"};
static const size_t sizes[4][12] = {{8, 8, 4, 4, 8, 8}, {8, 8, 8, 4, 8, 8}, {128, 4, 4, 8, 8, 8, 8, 8}, {8, 8, 4, 8, 8}};

static int inside(uint64_t at, size_t n) {
  int i;
  for (i = 0; i < MOST; i++)
    if (block[i].at && at >= (uint64_t)(uintptr_t)block[i].at && at + n <= (uint64_t)(uintptr_t)block[i].at + block[i].bytes)
      return 1;
  return 0;
}

int cuInit(unsigned flags) { return FAILS || flags ? INVALID : OK; }
int cuDeviceGetCount(int *out) { return *out = 1, FAILS ? INVALID : OK; }
int cuDeviceGet(int *out, int i) { return *out = 70 + i, FAILS || i ? INVALID : OK; }
int cuDeviceGetAttribute(int *out, int which, int device) {
  if (FAILS || device != 70) return INVALID;
  *out = which == 75 ? 9 : 0;
  return OK;
}
int cuDevicePrimaryCtxRetain(void **out, int device) { return *out = &depth, !FAILS && device == 70 ? OK : INVALID; }
int cuCtxPushCurrent_v2(void *context) { return FAILS || context != &depth ? INVALID : (depth++, OK); }
int cuCtxPopCurrent_v2(void **out) { return *out = &depth, depth-- > 0 ? OK : INVALID; }
int cuGetErrorName(int code, const char **out) { return *out = code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE", OK; }
int cuGetErrorString(int code, const char **out) { return (void)code, *out = "of a test", OK; }

int cuMemAlloc_v2(uint64_t *out, size_t n) {
  int i;
  if (FAILS || !depth || !n) return INVALID;
  if (n > (size_t)1 << 28) return NO_MEMORY;
  for (i = 0; i < MOST && block[i].at; i++) {}
  if (i == MOST || posix_memalign((void **)&block[i].at, 256, n)) return NO_MEMORY;
  memset(block[i].at, 0x5a, n);
  block[i].bytes = n;
  *out = (uint64_t)(uintptr_t)block[i].at;
  return OK;
}
int cuMemFree_v2(uint64_t at) {
  int i;
  for (i = 0; i < MOST; i++)
    if (block[i].at == (char *)(uintptr_t)at) return free(block[i].at), block[i].at = NULL, OK;
  return INVALID;
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t n, void *stream) {
  if (FAILS || !depth || !inside(to, n) || inside((uint64_t)(uintptr_t)from, 1)) return INVALID;
  (void)stream;
  return memcpy((void *)(uintptr_t)to, from, n), OK;
}
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n, void *stream) {
  if (FAILS || !depth || !inside(from, n) || inside((uint64_t)(uintptr_t)to, 1)) return INVALID;
  (void)stream;
  return memcpy(to, (void *)(uintptr_t)from, n), OK;
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t n, void *stream) {
  if (FAILS || !depth || !inside(from, n) || !inside(to, n)) return INVALID;
  (void)stream;
  return memcpy((void *)(uintptr_t)to, (void *)(uintptr_t)from, n), OK;
}

int cuModuleLoadData(void **out, const void *image) {
  if (FAILS || !depth || memcmp(image, "FAKE", 4)) return INVALID;
  return modules++, *out = &modules, OK;
}
int cuModuleUnload(void *module) { return modules--, module == &modules ? OK : INVALID; }
int cuModuleGetFunction(void **out, void *module, const char *name) {
  size_t i;
  for (i = 0; i < 4 && !FAILS && module == &modules; i++)
    if (!strcmp(names[i], name)) return *out = (void *)(uintptr_t)&names[i], OK;
  return NOT_FOUND;
}
int cuFuncSetAttribute(void *f, int which, int value) { return !FAILS && f && which == 8 && value > 48 << 10 ? OK : INVALID; }
int cuFuncGetParamInfo(void *f, size_t i, size_t *offset, size_t *size) {
  size_t kind = (size_t)((const char *const *)f - names);
  if (i >= 12 || !sizes[kind][i]) return INVALID;
  return *offset = 8 * i, *size = sizes[kind][i], OK;
}

static uint64_t word(void **given, int i) {
  uint64_t out;
  memcpy(&out, given[i], 8);
  return out;
}
static int32_t number(void **given, int i) {
  int32_t out;
  memcpy(&out, given[i], 4);
  return out;
}

int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void *stream, void **given, void **extra) {
  size_t kind = (size_t)((const char *const *)f - names);
  int i, j, n, columns;
  float a, *x, *y, *z;
  if (FAILS || !depth || extra || gy != 1 || gz != 1 || by != 1 || bz != 1 || !gx || !bx || bx > 1024 || shared > 232448 || !stream)
    return INVALID;
  x = (float *)(uintptr_t)word(given, 0);
  if (kind == 2) {
    uint64_t map[16];
    memcpy(map, given[0], 128);
    x = (float *)(uintptr_t)map[0], n = number(given, 1), columns = number(given, 2), y = (float *)(uintptr_t)word(given, 5);
    if ((uintptr_t)given[0] % 64 || map[1] != (uint64_t)columns || map[2] != (uint64_t)n) return INVALID;
    if (!inside(map[0], 4u * (size_t)n * (size_t)columns) || !inside((uintptr_t)y, 4u * (size_t)n * (size_t)columns))
      return INVALID;
    for (i = 0; i < n; i++)
      for (j = 0; j < columns; j++) y[j * n + i] = x[i * columns + j]; /* a transpose */
    return OK;
  }
  y = (float *)(uintptr_t)word(given, 1);
  n = number(given, kind == 1 ? 3 : 2);
  if (!inside((uintptr_t)x, 4u * (size_t)n) || !inside((uintptr_t)y, 4u * (size_t)n)) return INVALID;
  if (kind == 0) {
    memcpy(&a, given[3], 4);
    for (i = 0; i < n; i++) y[i] = a * x[i];
  } else if (kind == 1) {
    z = (float *)(uintptr_t)word(given, 2);
    if (!inside((uintptr_t)z, 4u * (size_t)n)) return INVALID;
    for (i = 0; i < n; i++) z[i] = x[i] + y[i];
  } else {
    float *own = (float *)(uintptr_t)word(given, 3);
    if (!inside((uintptr_t)own, 4u * (size_t)n) || word(given, 4)) return INVALID;
    memcpy(own, x, 4u * (size_t)n);
    for (i = 0; i < n; i++) y[i] = own[n - 1 - i];
  }
  return OK;
}

int cuTensorMapEncodeTiled(void *out, int dtype, uint32_t rank, void *at, const uint64_t *shape, const uint64_t *strides,
                           const uint32_t *box, const uint32_t *steps, int interleave, int swizzle, int l2, int fill) {
  uint64_t map[16] = {0};
  if (FAILS || (uintptr_t)out % 64 || dtype != 7 || rank != 2 || strides[0] != 4 * shape[0] || !box[0] || steps[1] != 1 || interleave ||
      swizzle || l2 != 2 || fill)
    return INVALID;
  map[0] = (uint64_t)(uintptr_t)at, map[1] = shape[0], map[2] = shape[1];
  return memcpy(out, map, 128), OK;
}
int cuTensorMapReplaceAddress(void *map, void *at) { return memcpy(map, &at, 8), FAILS ? INVALID : OK; }

/* A driver crashes on a stream that is gone; so does this one.  Handles are not used again. */
static char made[1 << 12], gone[1 << 12];
static int is_stream(void *stream) {
  int64_t i = (char *)stream - made;
  if (stream && (i < 0 || i >= streams || gone[i])) abort();
  return stream != NULL;
}
int cuStreamCreate(void **out, unsigned flags) {
  if (FAILS || streams == (int)sizeof made || !depth || flags != 1) return INVALID;
  return live++, *out = &made[streams++], OK;
}
int cuStreamDestroy_v2(void *stream) {
  if (!is_stream(stream)) return INVALID;
  return live--, gone[(char *)stream - made] = 1, OK;
}
int cuStreamSynchronize(void *stream) { return is_stream(stream), FAILS ? INVALID : OK; }
int cuCtxSynchronize(void) { return depth && !FAILS ? OK : INVALID; }
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) { return !FAILS && stream && event && !flags ? OK : INVALID; }
int cuEventCreate(void **out, unsigned flags) { return FAILS || flags ? INVALID : (live++, *out = malloc(1), OK); }
int cuEventDestroy_v2(void *event) { return live--, free(event), OK; }
int cuEventRecord(void *event, void *stream) { return !FAILS && event && stream ? OK : INVALID; }
int cuEventSynchronize(void *event) { return !FAILS && event ? OK : INVALID; }
int cuEventElapsedTime(float *out, void *start, void *end) { return *out = 0.5f, !FAILS && start && end ? OK : INVALID; }
