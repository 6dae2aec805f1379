/* Several threads run one entry point at once, with memory that the runtime gives: every result must be the same.
 *
 *   threads BUNDLE ENTRY THREADS TIMES
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tessera/tessera.h"

static TessEntry *entry;
static TessTensorDesc in[32], want[32];
static uint32_t n, m;
static int times;

static void *work(void *other) {
  TessTensorDesc out[32];
  uint32_t i;
  int k;
  for (k = 0; k < times; k++) {
    memset(out, 0, sizeof out);
    if (tess_entry_run(entry, in, n, out, m)) return other;
    for (i = 0; i < m; i++) {
      if (out[i].bytes != want[i].bytes || memcmp(out[i].data, want[i].data, out[i].bytes)) return other;
      tess_tensor_free(&out[i]);
    }
  }
  return NULL;
}

int main(int argc, char **argv) {
  pthread_t threads[4];
  TessBundle *bundle;
  TessValueInfo info;
  uint32_t i, j;
  int bad = 0;
  if (argc < 5 || tess_bundle_open(argv[1], 0, &bundle) || tess_entry_open(bundle, argv[2], &entry)) return 1;
  tess_set_threads((uint32_t)atoi(argv[3]));
  times = atoi(argv[4]), n = tess_entry_input_count(entry), m = tess_entry_output_count(entry);
  for (i = 0; i < n; i++) {
    tess_entry_input(entry, i, &info);
    for (j = 0; j < info.rank; j++)
      if (info.shape[j] < 0) info.shape[j] = 6;
    if (tess_tensor_init(&in[i], info.dtype, info.rank, info.shape, NULL)) return 1;
    in[i].data = calloc(1, in[i].bytes + 1);
    for (j = 0; j < in[i].bytes / 4; j++)
      if (info.dtype == TESS_F32) ((float *)in[i].data)[j] = (float)(j % 17) * 0.125f;
      else ((int32_t *)in[i].data)[j] = (int32_t)(j % 17);
  }
  if (tess_entry_run(entry, in, n, want, m)) return 1;
  for (i = 0; i < 4; i++) pthread_create(&threads[i], NULL, work, &times);
  for (i = 0; i < 4; i++) {
    void *failed;
    pthread_join(threads[i], &failed);
    bad |= failed != NULL;
  }
  for (i = 0; i < n; i++) free(in[i].data);
  for (i = 0; i < m; i++) tess_tensor_free(&want[i]);
  tess_bundle_close(bundle);
  return bad ? 2 : 0;
}
