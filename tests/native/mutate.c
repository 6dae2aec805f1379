/* Opens damaged copies of a bundle: nothing may crash, and nothing that is changed may be taken for whole.
 *
 *   mutate BUNDLE COUNT SEED
 *
 * A child does a batch of copies, so that a crash ends one batch and is counted; copy i is a function of SEED + i.
 * Every second copy has its digests mended, so that the readers behind them are reached too; it is opened, described and
 * planned at several sizes, and never run.
 */
#include "../../tessera/native/tessera.c"

#include <sys/wait.h>

static uint64_t state;
static uint32_t draw(uint32_t n) {
  state = state * 6364136223846793005ull + 1442695040888963407ull;
  return (uint32_t)(state >> 33) % n;
}

static void put_u32(uint8_t *p, uint32_t x) {
  p[0] = (uint8_t)x, p[1] = (uint8_t)(x >> 8), p[2] = (uint8_t)(x >> 16), p[3] = (uint8_t)(x >> 24);
}

static void mend(uint8_t *data, uint64_t size) {
  uint32_t i, count = u32_at(data + 12);
  Sha c;
  if (size < HEADER || count > MOST_SECTIONS || HEADER + (uint64_t)count * ROW > size) return;
  for (i = 0; i < count; i++) {
    uint8_t *row = data + HEADER + (uint64_t)i * ROW;
    uint64_t at = u64_at(row + 8), n = u64_at(row + 16);
    if (at <= size && n <= size - at) sha256(data + at, n, row + 24);
  }
  sha_begin(&c);
  sha_add(&c, data, 32);
  sha_add(&c, data + HEADER, (uint64_t)count * ROW);
  sha_end(&c, data + 32);
}

static void mutate(uint8_t *data, uint64_t size, uint64_t from, uint64_t to) {
  static const uint32_t odd[] = {0, 1, 2, 7, 8, 9, 255, 256, 4095, 4096, 0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff};
  uint32_t n = 1 + draw(3);
  while (n--) {
    uint64_t at = from + draw((uint32_t)(to - from));
    if (draw(2)) data[at] ^= (uint8_t)(1 << draw(8));
    else if (at + 4 <= size) put_u32(data + at / 4 * 4, draw(2) ? odd[draw(14)] : u32_at(data + at / 4 * 4) + draw(5) - 2);
  }
}

static int look(const char *path, uint32_t flags) {
  TessBundle *bundle;
  TessEntry *entry;
  TessValueInfo info;
  TessKernelDesc kernel;
  TessTensorDesc in[8], out[8];
  uint32_t i, j, k, n, m;
  uint64_t bytes;
  if (tess_bundle_open(path, flags, &bundle)) return !*tess_last_error();
  if (!tess_entry_open(bundle, NULL, &entry)) {
    n = tess_entry_input_count(entry), m = tess_entry_output_count(entry);
    for (i = 0; i < m; i++) tess_entry_output(entry, i, &info);
    for (i = 0; i < tess_entry_kernel_count(entry); i++) tess_entry_kernel(entry, i, &kernel);
    for (k = 1; k < 9 && n <= 8 && m <= 8; k += 3) {
      for (i = 0; i < n; i++) {
        tess_entry_input(entry, i, &info);
        for (j = 0; j < info.rank; j++)
          if (info.shape[j] < 0) info.shape[j] = k;
        if (tess_tensor_init(&in[i], info.dtype, info.rank, info.shape, NULL)) break;
      }
      if (i == n) tess_entry_plan(entry, in, n, out, m, &bytes);
      if (i == n && flags & TESS_OPEN_UNVERIFIED && !tess_entry_run(entry, in, n, out, m)) return 1;
    }
  }
  tess_bundle_close(bundle);
  return 0;
}

static uint8_t *data, *copy;
static uint64_t whole;
static int made;
static char path[64];

/* What is changed in a copy that is taken for whole lies where nothing is verified before it is used: in code. */
static int matters(uint32_t rows) {
  uint64_t j, k;
  if (memcmp(copy, data, 64) || memcmp(copy + HEADER, data + HEADER, rows * ROW)) return 1;
  for (j = 0; j < rows; j++) {
    const uint8_t *row = data + HEADER + j * ROW;
    if (!memcmp(row + 56, "code/", 5)) continue;
    for (k = 0; k < u64_at(row + 16); k++)
      if (copy[u64_at(row + 8) + k] != data[u64_at(row + 8) + k]) return 1;
  }
  return 0;
}

/* Copy i: 0 refused, 1 taken, more: a fault. */
static int attempt(uint64_t seed, uint32_t i) {
  uint64_t size = whole, from = 0, to = size;
  uint32_t where, rows = u32_at(data + 12);
  TessBundle *bundle;
  TessEntry *entry;
  int taken = 0;
  state = (seed + i) * 0x9e3779b97f4a7c15ull + 1;
  draw(2), where = draw(4);
  memcpy(copy, data, size);
  if (where == 0) to = HEADER + (uint64_t)rows * ROW;
  if (where > 1) { /* a section, more often a plan */
    uint32_t k = draw(rows), tries;
    for (tries = 0; tries < 8 && memcmp(copy + HEADER + (uint64_t)k * ROW + 56, "plan/", 5); tries++) k = draw(rows);
    from = u64_at(copy + HEADER + (uint64_t)k * ROW + 8), to = from + u64_at(copy + HEADER + (uint64_t)k * ROW + 16);
    if (from == to) from = 0, to = HEADER;
  }
  mutate(copy, size, from, to);
  if (!draw(20)) size = draw((uint32_t)size);
  if (i & 1 && size == whole) mend(copy, size);
  if (ftruncate(made, (off_t)size) || pwrite(made, copy, size, 0) != (ssize_t)size) return 3;
  if (look(path, TESS_OPEN_UNVERIFIED) || look(path, TESS_OPEN_TRUST_WEIGHTS)) return 4;
  if (tess_bundle_open(path, 0, &bundle)) return 0;
  taken = tess_entry_open(bundle, NULL, &entry) == TESS_OK;
  tess_bundle_close(bundle);
  if (!(i & 1) && matters(rows)) return 5; /* what is changed is not taken for whole */
  return taken;
}

int main(int argc, char **argv) {
  enum { BATCH = 500 };
  struct stat s;
  uint32_t i, j, count = argc > 2 ? (uint32_t)atoi(argv[2]) : 0, faults = 0, *taken;
  int file = argc > 3 ? open(argv[1], O_RDONLY) : -1;
  if (file < 0 || fstat(file, &s)) return 3;
  made = memfd_create("bundle", 0), whole = (uint64_t)s.st_size;
  data = malloc((size_t)s.st_size), copy = malloc((size_t)s.st_size);
  taken = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (made < 0 || read(file, data, (size_t)s.st_size) != s.st_size) return 3;
  snprintf(path, sizeof path, "/proc/self/fd/%d", made);
  for (i = 0; i < count; i += BATCH) {
    pid_t child = fork();
    int status = 0;
    if (!child) {
      for (j = i; j < i + BATCH && j < count; j++) {
        int found = attempt((uint64_t)atoll(argv[3]), j);
        taken[1] = j;
        if (found > 1) _exit(found);
        taken[0] += (uint32_t)found;
      }
      _exit(0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child) return 3;
    if (status) faults++, fprintf(stderr, "copy %u of seed %s: status %#x\n", taken[1] + 1, argv[3], (unsigned)status);
  }
  printf("%u copies, %u taken, %u faults\n", count, taken[0], faults);
  free(data), free(copy);
  return faults != 0;
}
