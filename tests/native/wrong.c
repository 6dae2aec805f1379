/* Prints what the runtime says of wrong calls, and checks that a strided input has the bits of a copy. */
#include <stdio.h>
#include <string.h>

#include "tessera/tessera.h"

static void say(tess_status_t status) { printf("%d %s\n", (int)status, status ? tess_last_error() : "done"); }

int main(int argc, char **argv) {
  static float data[1024], turned[1024], more[1024];
  static double wide[64];
  int64_t shape[] = {4, 3}, cut[] = {2, 3, 16, 15}, other[] = {3, 5};
  TessBundle *b, *c;
  TessEntry *e, *f;
  TessTensorDesc x, bad, out[6], again[6];
  TessOperatorDesc o;
  int i, j;
  if (argc < 3 || tess_bundle_open(argv[1], 0, &b) || tess_entry_open(b, NULL, &e)) return 1;
  say(tess_bundle_open("nothing.tess", 0, &c));
  say(tess_entry_open(b, "other", &f));
  memset(out, 0, sizeof out), memset(&bad, 0, sizeof bad), memset(again, 0, sizeof again);
  say(tess_entry_run(e, NULL, 0, out, 6));
  say(tess_entry_run(e, &bad, 1, out, 6));
  tess_tensor_init(&x, TESS_F64, 2, shape, wide);
  say(tess_entry_run(e, &x, 1, out, 6));
  for (i = 0; i < 12; i++) data[i] = 0.25f * (float)i;
  tess_tensor_init(&x, TESS_F32, 2, shape, data);
  say(tess_entry_run(e, &x, 1, out, 1));
  tess_entry_plan(e, &x, 1, out, 6, NULL);
  out[0].data = data;
  say(tess_entry_run(e, &x, 1, out, 6));
  tess_tensor_init(&out[0], TESS_F32, 2, other, more);
  say(tess_entry_run(e, &x, 1, out, 6));
  memset(out, 0, sizeof out);
  if (tess_entry_run(e, &x, 1, out, 6)) return 2;
  for (i = 0; i < 4; i++)
    for (j = 0; j < 3; j++) turned[j * 4 + i] = data[i * 3 + j];
  x.data = turned, x.strides[0] = 4, x.strides[1] = 16;
  if (tess_entry_run(e, &x, 1, again, 6)) return 3;
  for (i = 0; i < 6; i++) {
    if (out[i].bytes != again[i].bytes || memcmp(out[i].data, again[i].data, out[i].bytes)) return 4;
    tess_tensor_free(&out[i]), tess_tensor_free(&again[i]);
  }
  x.strides[1] = 1 << 20;
  if (tess_entry_run(e, &x, 1, again, 6) != TESS_ERROR_ARGUMENT) return 5;
  if (tess_bundle_open(argv[2], TESS_OPEN_UNVERIFIED, &c) || tess_entry_open(c, NULL, &f)) return 6;
  tess_tensor_init(&x, TESS_F32, 4, cut, more);
  say(tess_entry_plan(f, &x, 1, out, 1, NULL));
  say(tess_entry_run(f, &x, 1, out, 1));
  memset(&o, 0, sizeof o);
  o.size = sizeof o, o.version = TESS_ABI_VERSION, o.tag = 1, o.rows = 3, o.columns = 2;
  say(tess_operator_validate(&o));
  o.tag = 0;
  tess_tensor_init(&o.payload[0], TESS_F32, 2, shape, data);
  say(tess_operator_validate(&o));
  o.rows = 4, o.columns = 3;
  if (tess_operator_validate(&o)) return 7;
  if (strcmp(tess_numerics(), "fast")) return 8;
  say(tess_set_numerics("quick"));
  say(tess_set_numerics(NULL));
  tess_tensor_init(&x, TESS_F32, 2, shape, data);
  memset(out, 0, sizeof out);
  if (tess_set_numerics("deterministic") || strcmp(tess_numerics(), "deterministic")) return 9;
  if (tess_entry_run(e, &x, 1, out, 6)) return 10;
  for (i = 0; i < 6; i++) tess_tensor_free(&out[i]);
  if (tess_set_numerics("strict")) return 11;
  say(tess_entry_run(e, &x, 1, out, 6));
  tess_tensor_init(&x, TESS_F32, 1, &shape[1], data), tess_tensor_init(&bad, TESS_F32, 1, shape, more);
  say(tess_operator_apply(&o, &x, &bad));
  if (tess_set_numerics("fast") || tess_operator_apply(&o, &x, &bad)) return 12;
  tess_bundle_close(b), tess_bundle_close(c);
  return 0;
}
