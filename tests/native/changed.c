/* Writes over the sections of a bundle while it is open: what was not verified is not run.
 *
 *   changed BUNDLE WHOLE      two copies of one bundle, whose entry point takes a matrix of any sizes; the first is spoilt
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tessera/tessera.h"

enum { HEADER = 256, ROW = 128, OUTPUTS = 6 };

/* Write zeros into the middle of the sections whose names begin so; "" stands for the table. */
static int spoil(const char *path, const char *begins) {
  unsigned char row[ROW], count[4], none[64] = {0};
  unsigned i, n;
  int file = open(path, O_RDWR), done = 0;
  if (file < 0 || pread(file, count, 4, 12) != 4) return 0;
  n = count[0] | (unsigned)count[1] << 8;
  for (i = 0; i < n; i++) {
    uint64_t at, size;
    if (pread(file, row, ROW, HEADER + (off_t)i * ROW) != ROW) return 0;
    memcpy(&at, row + 8, 8), memcpy(&size, row + 16, 8);
    if (*begins ? strncmp((char *)row + 56, begins, strlen(begins)) != 0 : 0) continue;
    if (!*begins) at = HEADER + (uint64_t)i * ROW + 24, size = 32;
    done += pwrite(file, none, size < 64 ? size : 64, (off_t)(at + (size < 64 ? 0 : size / 2))) > 0;
  }
  close(file);
  return done;
}

static int run(TessEntry *e, int64_t rows, int64_t columns, TessTensorDesc *out) {
  static float data[64];
  int64_t shape[2];
  TessTensorDesc x;
  int i;
  shape[0] = rows, shape[1] = columns;
  for (i = 0; i < 64; i++) data[i] = 0.125f * (float)i;
  memset(out, 0, OUTPUTS * sizeof *out);
  return tess_tensor_init(&x, TESS_F32, 2, shape, data) || tess_entry_run(e, &x, 1, out, OUTPUTS);
}

int main(int argc, char **argv) {
  TessBundle *b, *whole;
  TessEntry *e, *good, *other;
  TessTensorDesc got[OUTPUTS], want[OUTPUTS];
  int i;
  if (argc < 3 || tess_bundle_open(argv[1], 0, &b) || tess_entry_open(b, NULL, &e)) return 1;
  if (tess_bundle_open(argv[2], 0, &whole) || tess_entry_open(whole, NULL, &good)) return 1;
  if (run(e, 4, 3, got)) return 2;
  for (i = 0; i < OUTPUTS; i++) tess_tensor_free(&got[i]);
  if (!spoil(argv[1], "code/")) return 3;
  if (tess_entry_open(b, NULL, &other) != TESS_ERROR_DIGEST) return 4;
  printf("%s\n", tess_last_error());
  if (!spoil(argv[1], "plan/")) return 5;
  if (tess_entry_open(b, NULL, &other) != TESS_ERROR_DIGEST) return 6;
  printf("%s\n", tess_last_error());
  if (!spoil(argv[1], "")) return 7; /* the digests, too */
  if (tess_entry_open(b, NULL, &other) != TESS_ERROR_DIGEST) return 8;
  if (run(e, 5, 7, got) || run(good, 5, 7, want)) return 9; /* sizes that the plan was not asked for before */
  for (i = 0; i < OUTPUTS; i++) {
    if (got[i].bytes != want[i].bytes || memcmp(got[i].data, want[i].data, want[i].bytes)) return 10;
    tess_tensor_free(&got[i]), tess_tensor_free(&want[i]);
  }
  tess_bundle_close(b), tess_bundle_close(whole);
  return 0;
}
