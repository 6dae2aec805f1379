/* Copies of random views, compared with the elements one by one: any order of axes, steps, both directions, broadcasts.
 *
 *   strided COUNT SEED
 *   strided whole      one copy of more than 4 GiB, whose pages are 64 MiB that lie there again and again
 */
#include "../../tessera/native/tessera.c"

static uint64_t state;
static uint32_t draw(uint32_t n) {
  state = state * 6364136223846793005ull + 1442695040888963407ull;
  return (uint32_t)(state >> 33) % n;
}

static void one_by_one(uint8_t *to, const uint8_t *from, const int64_t *shape, const int64_t *strides, uint32_t rank,
                       uint32_t item) {
  int64_t i, block;
  if (!rank) {
    memcpy(to, from, item);
    return;
  }
  block = (int64_t)(elements(shape + 1, rank - 1) * item);
  for (i = 0; i < shape[0]; i++)
    one_by_one(to + i * block, from + i * strides[0], shape + 1, strides + 1, rank - 1, item);
}

enum { STRETCH = 64 << 20, STRETCHES = 65 };

/* Memory of STRETCHES stretches: all but the last are the same pages. */
static uint8_t *repeated(void) {
  int file = memfd_create("stretch", 0), i;
  uint8_t *at = mmap(NULL, (size_t)STRETCHES * STRETCH, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (file < 0 || at == MAP_FAILED || ftruncate(file, 2 * (off_t)STRETCH)) return NULL;
  for (i = 0; i < STRETCHES; i++)
    if (mmap(at + (size_t)i * STRETCH, STRETCH, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file,
             i == STRETCHES - 1 ? STRETCH : 0) == MAP_FAILED)
      return NULL;
  return at;
}

static int copy_whole(void) {
  const int64_t shape[1] = {(int64_t)STRETCHES * STRETCH}, strides[1] = {1};
  uint8_t *from = repeated(), *to = repeated();
  if (!from || !to) return 3;
  from[shape[0] - 1] = 1;
  copy_strided(to, from, shape, strides, 1, 1);
  puts(to[shape[0] - 1] ? "the whole" : "a part");
  return 0;
}

int main(int argc, char **argv) {
  static const uint32_t items[] = {1, 2, 4, 8, 16};
  int cases, i;
  uint32_t j, k;
  if (argc == 2 && !strcmp(argv[1], "whole")) return copy_whole();
  if (argc != 3) return 1;
  state = strtoull(argv[2], NULL, 10);
  for (cases = atoi(argv[1]), i = 0; i < cases; i++) {
    int64_t shape[TESS_MAX_RANK] = {0}, strides[TESS_MAX_RANK] = {0}, low, high, step;
    uint32_t rank = draw(TESS_MAX_RANK + 1), item = items[draw(5)], order[TESS_MAX_RANK];
    uint64_t n;
    uint8_t *from, *to, *want;
    for (j = 0; j < rank; j++) order[j] = j, shape[j] = draw(12) ? 1 + draw(rank < 3 ? 70 : 5) : 0;
    for (j = rank; j-- > 1;) k = draw(j + 1), step = order[j], order[j] = order[k], order[k] = (uint32_t)step;
    for (step = item, j = 0; j < rank; j++) {
      int64_t apart = step * (1 + !draw(3));
      strides[order[j]] = !draw(9) ? 0 : draw(5) ? apart : -apart;
      if (strides[order[j]]) step = apart * (shape[order[j]] ? shape[order[j]] : 1);
    }
    if (reach(shape, strides, rank, item, &low, &high)) return 2;
    n = elements(shape, rank) * item;
    if (n > 1 << 22) continue;
    from = malloc((uint64_t)(high - low) + 1), to = malloc(n + 1), want = malloc(n + 1);
    if (!from || !to || !want) return 3;
    for (step = 0; step < high - low; step++) from[step] = (uint8_t)draw(256);
    memset(to, 0, n + 1), memset(want, 1, n + 1);
    if (n) {
      copy_strided(to, from - low, shape, strides, rank, item);
      one_by_one(want, from - low, shape, strides, rank, item);
    }
    if (memcmp(to, want, n) || to[n]) {
      fprintf(stderr, "case %d of seed %s: rank %u, items of %u\n", i, argv[2], rank, item);
      return 4;
    }
    free(from), free(to), free(want);
  }
  printf("%d copies\n", cases);
  return 0;
}
