/* Runs an entry point of a bundle on inputs from a file and compares the bits of its outputs with those recorded there.
 *
 *   run BUNDLE RECORD ENTRY THREADS [TIMES]      RECORD: for each tensor its number of axes, its sizes, its bytes
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tessera/tessera.h"

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void check(tess_status_t status) {
  if (status == TESS_OK) return;
  fprintf(stderr, "status %d: %s\n", (int)status, tess_last_error());
  exit(1);
}

static TessTensorDesc read_tensor(FILE *file, uint32_t dtype) {
  TessTensorDesc t;
  int64_t rank, shape[TESS_MAX_RANK];
  if (fread(&rank, 8, 1, file) != 1 || fread(shape, 8, (size_t)rank, file) != (size_t)rank) exit(3);
  check(tess_tensor_init(&t, dtype, (uint32_t)rank, shape, NULL));
  t.data = malloc(t.bytes + 1), t.flags = TESS_TENSOR_OWNED;
  if (fread(t.data, 1, t.bytes, file) != t.bytes) exit(3);
  return t;
}

int main(int argc, char **argv) {
  TessBundle *bundle;
  TessEntry *entry;
  TessValueInfo info;
  TessTensorDesc in[32], out[32], want[32];
  uint32_t i, n, m;
  int times = argc > 5 ? atoi(argv[5]) : 1, k, same = 1;
  FILE *file = fopen(argv[2], "rb");
  double start = now(), opened, first, best = 1e9, last;
  check(tess_set_threads((uint32_t)atoi(argv[4])));
  check(tess_bundle_open(argv[1], 0, &bundle));
  check(tess_entry_open(bundle, argv[3], &entry));
  opened = now();
  n = tess_entry_input_count(entry), m = tess_entry_output_count(entry);
  for (i = 0; i < n; i++) check(tess_entry_input(entry, i, &info)), in[i] = read_tensor(file, info.dtype);
  for (i = 0; i < m; i++) check(tess_entry_output(entry, i, &info)), want[i] = read_tensor(file, info.dtype);
  memset(out, 0, sizeof out);
  first = now();
  check(tess_entry_run(entry, in, n, out, m));
  fprintf(stderr, "open %.3f ms, first run %.3f ms", 1e3 * (opened - start), 1e3 * (now() - first));
  for (k = 1; k < times; k++) {
    last = now();
    check(tess_entry_run(entry, in, n, out, m));
    if (now() - last < best) best = now() - last;
  }
  if (times > 1) fprintf(stderr, ", later runs %.3f us", 1e6 * best);
  for (i = 0; i < m; i++) same &= out[i].bytes == want[i].bytes && !memcmp(out[i].data, want[i].data, out[i].bytes);
  fprintf(stderr, ", %s: %s\n", tess_entry_target(entry), same ? "the same bits" : "OTHER BITS");
  for (i = 0; i < n; i++) tess_tensor_free(&in[i]);
  for (i = 0; i < m; i++) tess_tensor_free(&out[i]), tess_tensor_free(&want[i]);
  tess_bundle_close(bundle);
  fclose(file);
  return same ? 0 : 2;
}
