/* Run an entry point of a bundle on a CUDA device, with tensors of this processor and with those of the device, and
 * compare every bit with a record.
 *
 *   gpu BUNDLE RECORD ENTRY TIMES
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tessera/tessera.h"

enum { MOST = 32 };

static TessBundle *bundle;
static TessStream *stream;
static TessEvent *start, *end;
static TessTensorDesc in[MOST], want[MOST], out[MOST], on_in[MOST], on_out[MOST];
static FILE *file;

/* Give back all that there is, whatever failed. */
static void give_back(void) {
  int i;
  for (i = 0; i < MOST; i++) {
    tess_tensor_free(&in[i]), tess_tensor_free(&want[i]), tess_tensor_free(&out[i]);
    tess_tensor_free(&on_in[i]), tess_tensor_free(&on_out[i]);
  }
  tess_event_destroy(start), tess_event_destroy(end), tess_stream_destroy(stream);
  tess_bundle_close(bundle);
  if (file) fclose(file);
}

static void check(tess_status_t status) {
  if (!status) return;
  fprintf(stderr, "%d %s\n", (int)status, tess_last_error());
  give_back();
  exit(1);
}

static void read_tensor(TessTensorDesc *t, tess_dtype_t dtype) {
  int64_t rank, shape[TESS_MAX_RANK];
  if (fread(&rank, 8, 1, file) != 1 || rank > TESS_MAX_RANK || fread(shape, 8, (size_t)rank, file) != (size_t)rank) exit(9);
  check(tess_tensor_init(t, dtype, (uint32_t)rank, shape, NULL));
  check(tess_memory_alloc(TESS_DEVICE_CPU, t->bytes, &t->data));
  t->flags = TESS_TENSOR_OWNED;
  if (t->bytes && fread(t->data, 1, t->bytes, file) != t->bytes) exit(9);
}

/* The tensor with memory of the device, and its bytes if it is an input. */
static void there(TessTensorDesc *d, const TessTensorDesc *t, uint32_t device, int copied) {
  void *data;
  check(tess_memory_alloc(device, t->bytes, &data));
  *d = *t, d->device = device, d->data = data;
  if (copied) check(tess_memory_copy(d->data, device, t->data, 0, t->bytes));
}

int main(int argc, char **argv) {
  TessEntry *entry;
  TessValueInfo info;
  TessTensorDesc back;
  uint32_t i, n, m, device = TESS_DEVICE_CUDA;
  int times = argc > 4 ? atoi(argv[4]) : 1, k, same = 1;
  double seconds;
  file = argc > 3 ? fopen(argv[2], "rb") : NULL;
  if (!file) return 9;
  if (!tess_has_feature("cuda")) fprintf(stderr, "there is no CUDA device\n");
  check(tess_bundle_open(argv[1], 0, &bundle));
  check(tess_entry_open_on(bundle, argv[3], device, &entry));
  n = tess_entry_input_count(entry), m = tess_entry_output_count(entry);
  if (n > MOST || m > MOST || tess_entry_device(entry) != device) return 9;
  for (i = 0; i < n; i++) check(tess_entry_input(entry, i, &info)), read_tensor(&in[i], info.dtype);
  for (i = 0; i < m; i++) check(tess_entry_output(entry, i, &info)), read_tensor(&want[i], info.dtype);
  check(tess_entry_run(entry, in, n, out, m));
  for (i = 0; i < m; i++) same &= out[i].bytes == want[i].bytes && !memcmp(out[i].data, want[i].data, out[i].bytes);
  if (!same) fprintf(stderr, "tensors of this processor: OTHER BITS\n");
  check(tess_stream_create(device, &stream));
  check(tess_event_create(device, &start)), check(tess_event_create(device, &end));
  for (i = 0; i < n; i++) there(&on_in[i], &in[i], device, 1);
  for (i = 0; i < m; i++) there(&on_out[i], &want[i], device, 0);
  check(tess_entry_run_on(entry, stream, on_in, n, on_out, m));
  check(tess_event_record(start, stream));
  for (k = 0; k < times; k++) check(tess_entry_run_on(entry, stream, on_in, n, on_out, m));
  check(tess_event_record(end, stream)), check(tess_event_synchronize(end));
  check(tess_event_elapsed(start, end, &seconds));
  for (i = 0; i < m; i++) {
    back = out[i];
    check(tess_memory_copy(back.data, 0, on_out[i].data, device, back.bytes));
    if (memcmp(back.data, want[i].data, back.bytes)) same = 0, fprintf(stderr, "output %u of the device: OTHER BITS\n", i);
  }
  fprintf(stderr, "%s, %u kernels, %.1f us a run: %s\n", tess_entry_target(entry), tess_entry_kernel_count(entry),
          1e6 * seconds / times, same ? "the same bits" : "OTHER BITS");
  give_back();
  return same ? 0 : 2;
}
