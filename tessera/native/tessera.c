/* tessera.c: the runtime of bundles.  It needs libc and POSIX threads; build it with any C99 compiler.
 *
 *   cc -O2 -pthread -I include program.c tessera.c
 *
 * In order: errors, SHA-256, the file, plans, sizes, memory, machine code, threads, running.  A reader believes nothing
 * in a file before it is checked, also when digests fit: they tell who damaged a file, not who wrote it.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "tessera/tessera.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

/* Errors ------------------------------------------------------------------------------------------------------- */

static __thread char last_error[512];

static void explain(const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(last_error, sizeof last_error, format, args);
  va_end(args);
}

#define fail(status, ...) (explain(__VA_ARGS__), (tess_status_t)(status))

const char *tess_last_error(void) { return last_error; }
uint32_t tess_abi_version(void) { return TESS_ABI_VERSION; }

#define TRY(call)                        \
  do {                                   \
    tess_status_t status_ = (call);      \
    if (status_ != TESS_OK) return status_; \
  } while (0)

/* SHA-256 (FIPS 180-4) ------------------------------------------------------------------------------------------ */

static const uint32_t K256[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01,
    0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc,
    0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
    0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08,
    0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

typedef struct {
  uint32_t h[8];
  uint8_t block[64];
  uint64_t bytes;
} Sha;

#define ROTATE(x, n) (((x) >> (n)) | ((x) << (32 - (n))))

static void sha_block(uint32_t *h, const uint8_t *p) {
  uint32_t w[64], s[8];
  int i;
  for (i = 0; i < 16; i++, p += 4)
    w[i] = (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
  for (i = 16; i < 64; i++) {
    uint32_t a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + w[i - 7] + (ROTATE(a, 7) ^ ROTATE(a, 18) ^ a >> 3) + (ROTATE(b, 17) ^ ROTATE(b, 19) ^ b >> 10);
  }
  memcpy(s, h, sizeof s);
  for (i = 0; i < 64; i++) {
    uint32_t t = s[7] + (ROTATE(s[4], 6) ^ ROTATE(s[4], 11) ^ ROTATE(s[4], 25)) + ((s[4] & s[5]) ^ (~s[4] & s[6])) +
                 K256[i] + w[i];
    uint32_t u = (ROTATE(s[0], 2) ^ ROTATE(s[0], 13) ^ ROTATE(s[0], 22)) + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
    s[7] = s[6], s[6] = s[5], s[5] = s[4], s[4] = s[3] + t, s[3] = s[2], s[2] = s[1], s[1] = s[0], s[0] = t + u;
  }
  for (i = 0; i < 8; i++) h[i] += s[i];
}

#if defined(__x86_64__)
/* The same by the processor's own instructions. */
__attribute__((target("sha,sse4.1"))) static void sha_blocks_by_instruction(uint32_t *h, const uint8_t *p, uint64_t n) {
  const __m128i order = _mm_set_epi64x(0x0c0d0e0f08090a0bll, 0x0405060700010203ll);
  __m128i t = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(const void *)h), 0xb1);
  __m128i s1 = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(const void *)(h + 4)), 0x1b);
  __m128i s0 = _mm_alignr_epi8(t, s1, 8);
  s1 = _mm_blend_epi16(s1, t, 0xf0);
  for (; n; n--, p += 64) {
    __m128i a = s0, b = s1, w[4], x;
    int i;
    for (i = 0; i < 4; i++) w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)(p + 16 * i)), order);
    for (i = 0; i < 16; i++) {
      if (i > 3) {
        x = _mm_sha256msg1_epu32(w[i & 3], w[(i + 1) & 3]);
        x = _mm_add_epi32(x, _mm_alignr_epi8(w[(i + 3) & 3], w[(i + 2) & 3], 4));
        w[i & 3] = _mm_sha256msg2_epu32(x, w[(i + 3) & 3]);
      }
      x = _mm_add_epi32(w[i & 3], _mm_loadu_si128((const __m128i *)(const void *)(K256 + 4 * i)));
      s1 = _mm_sha256rnds2_epu32(s1, s0, x);
      s0 = _mm_sha256rnds2_epu32(s0, s1, _mm_shuffle_epi32(x, 0x0e));
    }
    s0 = _mm_add_epi32(s0, a), s1 = _mm_add_epi32(s1, b);
  }
  t = _mm_shuffle_epi32(s0, 0x1b), s1 = _mm_shuffle_epi32(s1, 0xb1);
  _mm_storeu_si128((__m128i *)(void *)h, _mm_blend_epi16(t, s1, 0xf0));
  _mm_storeu_si128((__m128i *)(void *)(h + 4), _mm_alignr_epi8(s1, t, 8));
}

/* Whether the processor has them, and they agree with the code above on two blocks. */
static int has_sha(void) {
  static int known; /* 0: not yet, 1: no, 2: yes */
  int found = __atomic_load_n(&known, __ATOMIC_RELAXED);
  uint32_t a, b, c, d, x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, y[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  uint8_t sample[128];
  if (found) return found == 2;
  found = 1;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) && b >> 29 & 1 && __builtin_cpu_supports("sse4.1")) {
    for (a = 0; a < 128; a++) sample[a] = (uint8_t)(a * 37 + 11);
    sha_block(x, sample);
    sha_block(x, sample + 64);
    sha_blocks_by_instruction(y, sample, 2);
    if (!memcmp(x, y, sizeof x)) found = 2;
  }
  __atomic_store_n(&known, found, __ATOMIC_RELAXED);
  return found == 2;
}
#endif

static void sha_blocks(uint32_t *h, const uint8_t *p, uint64_t n) {
#if defined(__x86_64__)
  if (has_sha()) {
    sha_blocks_by_instruction(h, p, n);
    return;
  }
#endif
  for (; n; n--, p += 64) sha_block(h, p);
}

static void sha_begin(Sha *c) {
  static const uint32_t h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  memcpy(c->h, h, sizeof h);
  c->bytes = 0;
}

static void sha_add(Sha *c, const void *data, uint64_t n) {
  const uint8_t *p = data;
  uint64_t held = c->bytes % 64;
  c->bytes += n;
  if (held && n) {
    uint64_t take = 64 - held < n ? 64 - held : n;
    memcpy(c->block + held, p, take);
    p += take, n -= take;
    if (held + take < 64) return;
    sha_block(c->h, c->block);
  }
  if (n >= 64) sha_blocks(c->h, p, n / 64);
  if (n % 64) memcpy(c->block, p + n / 64 * 64, n % 64);
}

static void sha_end(Sha *c, uint8_t out[32]) {
  uint64_t bits = c->bytes * 8, held = c->bytes % 64;
  uint8_t pad[72] = {0x80};
  uint64_t n = held < 56 ? 56 - held : 120 - held;
  int i;
  for (i = 0; i < 8; i++) pad[n + (uint64_t)i] = (uint8_t)(bits >> (56 - 8 * i));
  sha_add(c, pad, n + 8);
  for (i = 0; i < 32; i++) out[i] = (uint8_t)(c->h[i / 4] >> (24 - 8 * (i % 4)));
}

static void sha256(const void *data, uint64_t n, uint8_t out[32]) {
  Sha c;
  sha_begin(&c);
  sha_add(&c, data, n);
  sha_end(&c, out);
}

/* The file ------------------------------------------------------------------------------------------------------ */

enum { HEADER = 256, ROW = 128, PAGE = 4096, MOST_SECTIONS = 4096, NAME_BYTES = 72 };
enum { KIND_MANIFEST = 1, KIND_CODE = 5, KIND_WEIGHTS = 6, KINDS = 7 };

typedef struct {
  uint32_t kind;
  const char *name;
  const uint8_t *data;
  uint64_t size;
  const uint8_t *digest;
} Section;

struct TessBundle {
  const uint8_t *data;
  uint64_t size;
  uint32_t flags, count;
  Section *sections;
  const Section *weights;
  uint64_t weights_at; /* where the tensors begin in their section */
  TessEntry *entries;
  pthread_mutex_t lock;
};

static uint32_t u32_at(const uint8_t *p) {
  return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
static uint64_t u64_at(const uint8_t *p) { return u32_at(p) | (uint64_t)u32_at(p + 4) << 32; }
static uint64_t page_up(uint64_t n) { return (n + PAGE - 1) / PAGE * PAGE; }

static const Section *section(const TessBundle *b, const char *name) {
  uint32_t i;
  for (i = 0; i < b->count; i++)
    if (!strcmp(b->sections[i].name, name)) return &b->sections[i];
  return NULL;
}

static tess_status_t read_table(TessBundle *b) {
  uint64_t end, i, j;
  if (b->size < HEADER || memcmp(b->data, "TESSERAB", 8)) return fail(TESS_ERROR_FILE, "bundle: it is no bundle");
  if (u32_at(b->data + 8) != TESS_BUNDLE_VERSION)
    return fail(TESS_ERROR_FILE, "bundle: format version %u, expected %u", u32_at(b->data + 8), TESS_BUNDLE_VERSION);
  b->count = u32_at(b->data + 12);
  if (u64_at(b->data + 16) != b->size)
    return fail(TESS_ERROR_FILE, "bundle: %llu bytes, its header states %llu; it is truncated or damaged",
                (unsigned long long)b->size, (unsigned long long)u64_at(b->data + 16));
  if (b->count > MOST_SECTIONS || u64_at(b->data + 24) != HEADER || HEADER + (uint64_t)b->count * ROW > b->size)
    return fail(TESS_ERROR_FILE, "bundle: the table of sections does not fit; it is damaged");
  b->sections = calloc(b->count + 1, sizeof *b->sections);
  if (!b->sections) return fail(TESS_ERROR_MEMORY, "bundle: no memory for %u sections", b->count);
  end = page_up(HEADER + (uint64_t)b->count * ROW);
  for (i = 0; i < b->count; i++) {
    const uint8_t *p = b->data + HEADER + i * ROW;
    Section *s = &b->sections[i];
    uint64_t at = u64_at(p + 8);
    s->kind = u32_at(p), s->size = u64_at(p + 16), s->digest = p + 24, s->name = (const char *)p + 56;
    if (s->kind < 1 || s->kind > KINDS || u32_at(p + 4) || p[ROW - 1] || !p[56])
      return fail(TESS_ERROR_FILE, "bundle: section %u is of an unknown kind; it is damaged", (unsigned)i);
    if (at != end || s->size > b->size || at > b->size - s->size)
      return fail(TESS_ERROR_FILE, "bundle: section '%s' does not fit; it is damaged", s->name);
    s->data = b->data + at;
    end = page_up(at + s->size);
    for (j = 0; j < i; j++)
      if (!strcmp(b->sections[j].name, s->name)) return fail(TESS_ERROR_FILE, "bundle: two sections '%s'", s->name);
    if (s->kind == KIND_WEIGHTS) b->weights = s;
  }
  if (!b->weights || b->weights->size < 8) return fail(TESS_ERROR_FILE, "bundle: it has no weights section");
  b->weights_at = u64_at(b->weights->data);
  if (b->weights_at > b->weights->size - 8) return fail(TESS_ERROR_FILE, "bundle: its weights are truncated");
  b->weights_at += 8;
  return TESS_OK;
}

static tess_status_t check_digests(const TessBundle *b) {
  uint8_t digest[32];
  uint32_t i;
  Sha c;
  sha_begin(&c);
  sha_add(&c, b->data, 32);
  sha_add(&c, b->data + HEADER, (uint64_t)b->count * ROW);
  sha_end(&c, digest);
  if (memcmp(digest, b->data + 32, 32))
    return fail(TESS_ERROR_DIGEST, "bundle: the digest of the header is wrong; it is damaged or was changed");
  for (i = 0; i < b->count; i++) {
    const Section *s = &b->sections[i];
    if (s->kind == KIND_WEIGHTS && b->flags & TESS_OPEN_TRUST_WEIGHTS) continue;
    if (s->kind == KIND_CODE) continue; /* the copy that runs is what is verified */
    sha256(s->data, s->size, digest);
    if (memcmp(digest, s->digest, 32))
      return fail(TESS_ERROR_DIGEST, "bundle: the digest of section '%s' is wrong; it is damaged or was changed", s->name);
  }
  return TESS_OK;
}

static tess_status_t map_file(TessBundle *b, const char *path) {
  struct stat s;
  void *p;
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return fail(TESS_ERROR_FILE, "bundle: %s cannot be opened (%s)", path, strerror(errno));
  if (fstat(file, &s) || !S_ISREG(s.st_mode) || s.st_size < HEADER) {
    close(file);
    return fail(TESS_ERROR_FILE, "bundle: %s is no bundle", path);
  }
  p = mmap(NULL, (size_t)s.st_size, PROT_READ, MAP_PRIVATE, file, 0);
  close(file);
  if (p == MAP_FAILED) return fail(TESS_ERROR_FILE, "bundle: %s cannot be mapped (%s)", path, strerror(errno));
  b->data = p, b->size = (uint64_t)s.st_size;
  return TESS_OK;
}

static void free_entry(TessEntry *e);

tess_status_t tess_bundle_open(const char *path, uint32_t flags, TessBundle **out) {
  TessBundle *b;
  tess_status_t status;
  if (!path || !out) return fail(TESS_ERROR_ARGUMENT, "tess_bundle_open: path or out is null");
  *out = NULL;
  if (flags & ~(TESS_OPEN_UNVERIFIED | TESS_OPEN_TRUST_WEIGHTS))
    return fail(TESS_ERROR_ARGUMENT, "tess_bundle_open: flags %#x are unknown", flags);
  b = calloc(1, sizeof *b);
  if (!b) return fail(TESS_ERROR_MEMORY, "tess_bundle_open: no memory");
  pthread_mutex_init(&b->lock, NULL);
  b->flags = flags;
  status = map_file(b, path);
  if (!status) status = read_table(b);
  if (!status && !(flags & TESS_OPEN_UNVERIFIED)) status = check_digests(b);
  if (status) {
    tess_bundle_close(b);
    return status;
  }
  *out = b;
  return TESS_OK;
}

tess_status_t tess_bundle_digest(const TessBundle *b, uint8_t digest[32]) {
  if (!b || !digest) return fail(TESS_ERROR_ARGUMENT, "tess_bundle_digest: null");
  memcpy(digest, b->data + 32, 32);
  return TESS_OK;
}

tess_status_t tess_bundle_manifest(const TessBundle *b, const char **text, uint64_t *bytes) {
  const Section *s = b ? section(b, "manifest") : NULL;
  if (!s || !text || !bytes) return fail(TESS_ERROR_ARGUMENT, "tess_bundle_manifest: null, or there is none");
  *text = (const char *)s->data, *bytes = s->size;
  return TESS_OK;
}

/* Plans --------------------------------------------------------------------------------------------------------- */

enum { TEMPORARY, INPUT, DATA, VIEW };
enum { CALL, COPY, WHILE, SCAN };
enum { OP_CONSTANT, OP_SYMBOL, OP_ADD, OP_MULTIPLY, OP_QUOTIENT, OP_REST, OP_MAX, OP_MIN, OPCODES };
enum { DEEPEST = 64, MOST_TOGETHER = 16, IMPORTS = 5 };
static const uint8_t ITEM[20] = {0, 1, 1, 1, 2, 4, 8, 1, 2, 4, 8, 1, 1, 2, 2, 4, 8, 8, 16, 4};

typedef struct {
  const uint8_t *code;
  uint32_t length;
} Size;
typedef struct {
  uint32_t symbol, input, axis, least, rest;
  int64_t factor;
} Binding;
typedef struct {
  uint32_t kind, left, right;
  const uint8_t *reason;
  uint32_t reason_bytes;
} Guard;
typedef struct {
  uint32_t dtype, item, rank, kind, base, offset;
  uint32_t shape[TESS_MAX_RANK], strides[TESS_MAX_RANK];
  uint64_t at; /* of data, after the weights' header */
} Buffer;
typedef struct {
  char name[64];
  uint32_t buffer;
} Value;
typedef struct {
  char name[64];
  uint64_t at;
  uint32_t size_count, parameters, count, scratch, work;
  uint32_t *sizes;
  const uint8_t *writable;
} Kernel;
typedef struct {
  uint32_t kind, kernel, carry, xs, reverse, length, in_count, out_count;
  uint32_t *in, *out; /* of a call and a copy: all parameters in `in` */
} Step;

typedef struct Bound Bound;
typedef void (*Function)(void *const *parameters, const int64_t *sizes, int64_t begin, int64_t end, void *scratch);

struct TessEntry {
  TessBundle *bundle;
  TessEntry *next;
  char name[40], target[40], numerics[32];
  uint32_t arch;
  const uint8_t *at, *end; /* while the plan is read */
  uint32_t symbols, sizes, bindings, guards, buffers, inputs, outputs, kernels, steps;
  const uint8_t **symbol_names;
  Size *size;
  Binding *binding;
  Guard *guard;
  Buffer *buffer;
  Value *input, *output;
  Kernel *kernel;
  Step *step;
  void *held[64 * 1024 / sizeof(void *)]; /* small arrays of kernels and steps, by blocks */
  uint32_t blocks;
  uint8_t *pool_at, *pool_end;
  uint32_t scan_symbol;
  uint8_t *code;
  uint64_t code_bytes;
  Bound *bound;
  pthread_mutex_t lock;
};

static int enough(const TessEntry *e, uint64_t n) { return (uint64_t)(e->end - e->at) >= n; }

static tess_status_t damaged(const char *what) { return fail(TESS_ERROR_FILE, "bundle: its plan is damaged: %s", what); }

static tess_status_t take_u32(TessEntry *e, uint32_t *out) {
  if (!enough(e, 4)) return damaged("it ends early");
  *out = u32_at(e->at);
  e->at += 4;
  return TESS_OK;
}

static tess_status_t take_below(TessEntry *e, uint32_t bound, uint32_t *out) {
  TRY(take_u32(e, out));
  return *out < bound ? TESS_OK : damaged("a number is too large");
}

static tess_status_t take_u64(TessEntry *e, uint64_t *out) {
  if (!enough(e, 8)) return damaged("it ends early");
  *out = u64_at(e->at);
  e->at += 8;
  return TESS_OK;
}

static tess_status_t take_text(TessEntry *e, const uint8_t **text, uint32_t *bytes) {
  TRY(take_u32(e, bytes));
  if (!enough(e, *bytes)) return damaged("a text is too long");
  *text = e->at;
  e->at += *bytes;
  return TESS_OK;
}

static tess_status_t take_name(TessEntry *e, char *out, uint32_t room) {
  const uint8_t *text;
  uint32_t n;
  TRY(take_text(e, &text, &n));
  if (n > room - 1) n = room - 1;
  memcpy(out, text, n);
  out[n] = 0;
  return TESS_OK;
}

/* The length of a list, each of whose members takes at least so many bytes. */
static tess_status_t take_count(TessEntry *e, uint32_t least, uint32_t *count, void **out, size_t each) {
  TRY(take_u32(e, count));
  if (!enough(e, (uint64_t)*count * least)) return damaged("a list is too long");
  *out = calloc((size_t)*count + 1, each);
  return *out ? TESS_OK : fail(TESS_ERROR_MEMORY, "bundle: no memory for its plan");
}

/* Numbers of something, in memory of the entry. */
static tess_status_t take_numbers(TessEntry *e, uint32_t n, uint32_t bound, uint32_t **out) {
  uint64_t need = ((uint64_t)n + 1) * 4, i;
  need = (need + 7) / 8 * 8;
  if (!enough(e, (uint64_t)n * 4)) return damaged("a list is too long");
  if ((uint64_t)(e->pool_end - e->pool_at) < need) {
    uint64_t block = need > 1 << 16 ? need : 1 << 16;
    if (e->blocks == sizeof e->held / sizeof *e->held) return damaged("it has too many steps");
    e->pool_at = malloc(block);
    if (!e->pool_at) {
      e->pool_end = NULL;
      return fail(TESS_ERROR_MEMORY, "bundle: no memory for its plan");
    }
    e->held[e->blocks++] = e->pool_at;
    e->pool_end = e->pool_at + block;
  }
  *out = (uint32_t *)(void *)e->pool_at;
  e->pool_at += need;
  for (i = 0; i < n; i++) TRY(take_below(e, bound, &(*out)[i]));
  return TESS_OK;
}

static tess_status_t read_sizes(TessEntry *e) {
  uint32_t i, j;
  TRY(take_count(e, 4, &e->symbols, (void **)&e->symbol_names, sizeof *e->symbol_names));
  e->scan_symbol = UINT32_MAX;
  for (i = 0; i < e->symbols; i++) {
    const uint8_t *text;
    uint32_t n;
    e->symbol_names[i] = e->at;
    TRY(take_text(e, &text, &n));
    if (n == 5 && !memcmp(text, "steps", 5)) e->scan_symbol = i;
  }
  TRY(take_count(e, 16, &e->sizes, (void **)&e->size, sizeof *e->size));
  for (i = 0; i < e->sizes; i++) {
    uint32_t depth = 0;
    TRY(take_u32(e, &e->size[i].length));
    if (!enough(e, (uint64_t)e->size[i].length * 12)) return damaged("a size is too long");
    e->size[i].code = e->at;
    for (j = 0; j < e->size[i].length; j++, e->at += 12) {
      uint32_t op = u32_at(e->at);
      if (op >= OPCODES) return damaged("a size has an unknown operation");
      if (op == OP_SYMBOL && u64_at(e->at + 4) >= e->symbols) return damaged("a size has an unknown symbol");
      if (op <= OP_SYMBOL ? ++depth > DEEPEST : depth < 2) return damaged("a size is nested too deep");
      if (op > OP_SYMBOL) depth--;
    }
    if (depth != 1) return damaged("a size has no value");
  }
  TRY(take_count(e, 28, &e->bindings, (void **)&e->binding, sizeof *e->binding));
  for (i = 0; i < e->bindings; i++) {
    Binding *b = &e->binding[i];
    uint64_t factor;
    TRY(take_below(e, e->symbols, &b->symbol));
    TRY(take_u32(e, &b->input));
    TRY(take_below(e, TESS_MAX_RANK, &b->axis));
    TRY(take_below(e, 2, &b->least));
    TRY(take_u64(e, &factor));
    TRY(take_below(e, e->sizes, &b->rest));
    memcpy(&b->factor, &factor, 8);
    if (!b->factor) return damaged("a size is divided by 0");
  }
  TRY(take_count(e, 16, &e->guards, (void **)&e->guard, sizeof *e->guard));
  for (i = 0; i < e->guards; i++) {
    Guard *g = &e->guard[i];
    TRY(take_below(e, 3, &g->kind));
    TRY(take_below(e, e->sizes, &g->left));
    TRY(take_below(e, e->sizes, &g->right));
    TRY(take_text(e, &g->reason, &g->reason_bytes));
  }
  return TESS_OK;
}

static tess_status_t read_buffers(TessEntry *e) {
  uint32_t i, j;
  TRY(take_count(e, 16, &e->buffers, (void **)&e->buffer, sizeof *e->buffer));
  for (i = 0; i < e->buffers; i++) {
    Buffer *b = &e->buffer[i];
    TRY(take_below(e, sizeof ITEM, &b->dtype));
    TRY(take_u32(e, &b->item));
    if (!b->dtype || b->item != ITEM[b->dtype]) return damaged("a dtype is unknown");
    TRY(take_below(e, TESS_MAX_RANK + 1, &b->rank));
    for (j = 0; j < b->rank; j++) TRY(take_below(e, e->sizes, &b->shape[j]));
    TRY(take_below(e, 4, &b->kind));
    b->base = i;
    if (b->kind == DATA) TRY(take_u64(e, &b->at));
    if (b->kind == VIEW) {
      TRY(take_below(e, i, &b->base));
      if (e->buffer[b->base].kind == VIEW) return damaged("a view is of a view");
      TRY(take_below(e, e->sizes, &b->offset));
      for (j = 0; j < b->rank; j++) TRY(take_below(e, e->sizes, &b->strides[j]));
    }
  }
  return TESS_OK;
}

static tess_status_t read_values(TessEntry *e, uint32_t *count, Value **out) {
  uint32_t i;
  TRY(take_count(e, 8, count, (void **)out, sizeof **out));
  for (i = 0; i < *count; i++) {
    TRY(take_name(e, (*out)[i].name, sizeof(*out)[i].name));
    TRY(take_below(e, e->buffers, &(*out)[i].buffer));
  }
  return TESS_OK;
}

static tess_status_t read_kernels(TessEntry *e) {
  uint32_t i, flags, j;
  TRY(take_count(e, 32, &e->kernels, (void **)&e->kernel, sizeof *e->kernel));
  for (i = 0; i < e->kernels; i++) {
    Kernel *k = &e->kernel[i];
    TRY(take_name(e, k->name, sizeof k->name));
    TRY(take_u64(e, &k->at));
    if (k->at >= e->code_bytes) return damaged("a kernel lies outside of the code");
    TRY(take_u32(e, &k->size_count));
    TRY(take_numbers(e, k->size_count, e->symbols, &k->sizes));
    TRY(take_below(e, e->sizes, &k->count));
    TRY(take_below(e, e->sizes, &k->scratch));
    TRY(take_below(e, e->sizes, &k->work));
    TRY(take_u32(e, &flags));
    if (!enough(e, flags)) return damaged("a kernel has too many parameters");
    k->parameters = flags, k->writable = e->at;
    for (j = 0; j < flags; j++)
      if (e->at[j] > 1) return damaged("a kernel has a parameter of an unknown kind");
    e->at += flags;
  }
  return TESS_OK;
}

/* What a kernel writes is memory of the run, never an input, a weight or a view. */
static tess_status_t check_call(const TessEntry *e, const Step *s) {
  const Kernel *k = &e->kernel[s->kernel];
  uint32_t i;
  if (s->in_count != k->parameters) return damaged("a call has too few parameters");
  for (i = 0; i < s->in_count; i++)
    if (k->writable[i] && e->buffer[s->in[i]].kind != TEMPORARY) return damaged("a call writes to what it may not");
  return TESS_OK;
}

static tess_status_t check_loop(const TessEntry *e, const Step *s) {
  uint32_t i, given = s->in_count, flag = s->kind == WHILE;
  if (given + (uint64_t)s->out_count + flag != e->kernel[s->kernel].parameters || s->carry > s->out_count ||
      s->carry > given || s->xs > given - s->carry || (flag && s->carry != s->out_count))
    return damaged("a loop has too few parameters");
  for (i = 0; i < s->out_count; i++)
    if (e->buffer[s->out[i]].kind != TEMPORARY) return damaged("a loop writes to what it may not");
  for (i = 0; i < s->carry; i++)
    if (e->buffer[s->out[i]].item != e->buffer[s->in[i]].item) return damaged("a loop carries another type");
  for (i = s->carry; i < s->carry + s->xs; i++)
    if (!e->buffer[s->in[i]].rank) return damaged("a loop runs over a scalar");
  for (i = s->carry; i < s->out_count; i++)
    if (!e->buffer[s->out[i]].rank) return damaged("a loop makes a scalar of rows");
  if (e->kernel[s->kernel].size_count != (s->kind == SCAN)) return damaged("a loop has sizes of its own");
  if (s->kind == SCAN && e->kernel[s->kernel].sizes[0] != e->scan_symbol) return damaged("a loop has no length");
  return TESS_OK;
}

static tess_status_t read_steps(TessEntry *e) {
  uint32_t i;
  TRY(take_count(e, 12, &e->steps, (void **)&e->step, sizeof *e->step));
  for (i = 0; i < e->steps; i++) {
    Step *s = &e->step[i];
    TRY(take_below(e, 4, &s->kind));
    if (s->kind == COPY) {
      s->in_count = 2;
      TRY(take_numbers(e, 2, e->buffers, &s->in));
      if (e->buffer[s->in[0]].kind != TEMPORARY) return damaged("a copy writes to what it may not");
      if (e->buffer[s->in[0]].item != e->buffer[s->in[1]].item || e->buffer[s->in[0]].rank != e->buffer[s->in[1]].rank)
        return damaged("a copy is of another type");
      continue;
    }
    TRY(take_below(e, e->kernels, &s->kernel));
    if (s->kind != CALL) {
      TRY(take_u32(e, &s->carry));
      TRY(take_u32(e, &s->xs));
      TRY(take_below(e, 2, &s->reverse));
      TRY(take_below(e, e->sizes, &s->length));
    }
    TRY(take_u32(e, &s->in_count));
    TRY(take_numbers(e, s->in_count, e->buffers, &s->in));
    if (s->kind == CALL) {
      TRY(check_call(e, s));
      continue;
    }
    TRY(take_u32(e, &s->out_count));
    TRY(take_numbers(e, s->out_count, e->buffers, &s->out));
    TRY(check_loop(e, s));
  }
  return TESS_OK;
}

/* Functions that kernels call.  fmod is exact, so that every correct one has the same bits. */
static double exact_fmod(double x, double y) {
  uint64_t a, b, sign;
  int i, j;
  memcpy(&a, &x, 8);
  memcpy(&b, &y, 8);
  sign = a & 1ull << 63, a &= ~(1ull << 63), b &= ~(1ull << 63);
  if (!b || a >= 0x7ffull << 52 || b > 0x7ffull << 52) return (x * y) / (x * y);
  if (a < b) return x;
  if (a == b) {
    memcpy(&x, &sign, 8);
    return x;
  }
  i = (int)(a >> 52), j = (int)(b >> 52);
  if (i) a = (a & ((1ull << 52) - 1)) | 1ull << 52; else i = 1;
  if (j) b = (b & ((1ull << 52) - 1)) | 1ull << 52; else j = 1;
  for (; i > j; i--) {
    if (a >= b) a -= b;
    a <<= 1;
  }
  if (a >= b) a -= b;
  if (!a) {
    memcpy(&x, &sign, 8);
    return x;
  }
  while (!(a >> 52) && i > 1) a <<= 1, i--;
  if (a >> 52) a = (a & ((1ull << 52) - 1)) | (uint64_t)i << 52;
  a |= sign;
  memcpy(&x, &a, 8);
  return x;
}
static float exact_fmodf(float x, float y) { return (float)exact_fmod(x, y); }

static uint64_t import_named(const char *name) {
  typedef void (*Any)(void);
  static const char *const names[IMPORTS] = {"memcpy", "memset", "memmove", "fmodf", "fmod"};
  Any functions[IMPORTS];
  uint64_t address;
  int i;
  functions[0] = (Any)memcpy, functions[1] = (Any)memset, functions[2] = (Any)memmove;
  functions[3] = (Any)exact_fmodf, functions[4] = (Any)exact_fmod;
  for (i = 0; i < IMPORTS; i++)
    if (!strcmp(names[i], name)) {
      memcpy(&address, &functions[i], 8);
      return address;
    }
  return 0;
}

/* Copy the code, verify the copy, fill in what it imports, and make it executable and not writable. */
static tess_status_t load_code(TessEntry *e, const Section *s) {
  uint8_t digest[32];
  uint32_t count, i;
  char name[32];
  uint64_t at, address, whole = page_up(s->size ? s->size : 1);
  void *p = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return fail(TESS_ERROR_MEMORY, "bundle: no memory for %llu bytes of code", (unsigned long long)whole);
  e->code = p;
  memcpy(p, s->data, s->size);
  if (!(e->bundle->flags & TESS_OPEN_UNVERIFIED)) {
    sha256(p, s->size, digest);
    if (memcmp(digest, s->digest, 32))
      return fail(TESS_ERROR_DIGEST, "bundle: the digest of section '%s' is wrong; it is damaged or was changed", s->name);
  }
  TRY(take_u32(e, &count));
  for (i = 0; i < count; i++) {
    TRY(take_name(e, name, sizeof name));
    TRY(take_u64(e, &at));
    address = import_named(name);
    if (!address || s->size < 8 || at > s->size - 8) return damaged("an import is unknown");
    memcpy(e->code + at, &address, 8);
  }
  if (e->at != e->end) return damaged("bytes follow its end");
  if (e->bundle->flags & TESS_OPEN_UNVERIFIED) return TESS_OK; /* never executable */
  if (mprotect(p, whole, PROT_READ | PROT_EXEC))
    return fail(TESS_ERROR_MEMORY, "bundle: memory cannot be made executable (%s)", strerror(errno));
  __builtin___clear_cache((char *)p, (char *)p + whole);
  return TESS_OK;
}

static tess_status_t read_plan(TessEntry *e, const Section *plan, const Section *code) {
  uint32_t i, version;
  e->at = plan->data, e->end = plan->data + plan->size, e->code_bytes = code->size;
  if (!enough(e, 8) || memcmp(e->at, "TSPL", 4)) return damaged("it is none");
  e->at += 4;
  TRY(take_u32(e, &version));
  if (version != 1) return fail(TESS_ERROR_FILE, "bundle: its plan has version %u, expected 1", version);
  TRY(take_name(e, e->numerics, sizeof e->numerics));
  TRY(read_sizes(e));
  TRY(read_buffers(e));
  TRY(read_values(e, &e->inputs, &e->input));
  TRY(read_values(e, &e->outputs, &e->output));
  for (i = 0; i < e->inputs; i++)
    if (e->buffer[e->input[i].buffer].kind != INPUT || (i && e->input[i].buffer <= e->input[i - 1].buffer))
      return damaged("an input is none");
  for (i = version = 0; i < e->buffers; i++) version += e->buffer[i].kind == INPUT;
  if (version != e->inputs) return damaged("an input has no name");
  for (i = 0; i < e->bindings; i++)
    if (e->binding[i].input >= e->inputs ||
        e->binding[i].axis >= e->buffer[e->input[e->binding[i].input].buffer].rank)
      return damaged("a size follows from no input");
  TRY(read_kernels(e));
  TRY(read_steps(e));
  return load_code(e, code);
}

/* Processors ---------------------------------------------------------------------------------------------------- */

static int processors(const char **names, uint32_t *archs) {
  int n = 0;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
      __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt")) {
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
      names[n] = "cpu:x86-64-v4", archs[n++] = TESS_ARCH_X86_64_V4;
    names[n] = "cpu:x86-64-v3", archs[n++] = TESS_ARCH_X86_64_V3;
  }
#elif defined(__aarch64__)
  names[n] = "cpu:aarch64", archs[n++] = TESS_ARCH_AARCH64;
#endif
  return n;
}

int tess_has_feature(const char *name) {
  const char *names[4];
  uint32_t archs[4];
  int n = processors(names, archs);
  if (!name) return 0;
  while (n--)
    if (!strcmp(names[n], name)) return 1;
  return !strcmp(name, "bundle-1") || !strcmp(name, "verify") || !strcmp(name, "threads");
}

static const char *only_entry(const TessBundle *b, char *out, size_t room) {
  uint32_t i, n = 0;
  for (i = 0; i < b->count; i++)
    if (!strncmp(b->sections[i].name, "graph/", 6)) snprintf(out, room, "%s", b->sections[i].name + 6), n++;
  return n == 1 ? out : NULL;
}

tess_status_t tess_entry_open(TessBundle *b, const char *name, TessEntry **out) {
  const char *names[4];
  char key[128], own[NAME_BYTES];
  uint32_t archs[4];
  int i, n;
  TessEntry *e;
  const Section *plan = NULL, *code = NULL;
  tess_status_t status;
  if (!b || !out) return fail(TESS_ERROR_ARGUMENT, "tess_entry_open: bundle or out is null");
  *out = NULL;
  if (!name) name = only_entry(b, own, sizeof own);
  if (!name) return fail(TESS_ERROR_NAME, "tess_entry_open: the bundle has not one entry point: say which");
  snprintf(key, sizeof key, "graph/%.64s", name);
  if (!section(b, key)) return fail(TESS_ERROR_NAME, "tess_entry_open: there is no entry point '%.64s'", name);
  for (i = 0, n = processors(names, archs); i < n && !(plan && code); i++) {
    snprintf(key, sizeof key, "plan/%.64s/%s", name, names[i]);
    plan = section(b, key);
    snprintf(key, sizeof key, "code/%.64s/%s", name, names[i]);
    code = section(b, key);
  }
  if (!plan || !code) return fail(TESS_ERROR_TARGET, "tess_entry_open: '%.64s' has no machine code for this processor", name);
  e = calloc(1, sizeof *e);
  if (!e) return fail(TESS_ERROR_MEMORY, "tess_entry_open: no memory");
  pthread_mutex_init(&e->lock, NULL);
  e->bundle = b, e->arch = archs[i - 1];
  snprintf(e->name, sizeof e->name, "%.39s", name);
  snprintf(e->target, sizeof e->target, "%s", names[i - 1]);
  status = read_plan(e, plan, code);
  if (status) {
    free_entry(e);
    return status;
  }
  pthread_mutex_lock(&b->lock);
  e->next = b->entries, b->entries = e;
  pthread_mutex_unlock(&b->lock);
  *out = e;
  return TESS_OK;
}

/* Sizes --------------------------------------------------------------------------------------------------------- */

static int64_t quotient(int64_t a, int64_t b) { return a / b - (a % b && (a < 0) != (b < 0)); }

/* The value of a size; 0 on success. */
static int size_value(const Size *s, const int64_t *symbols, int64_t *out) {
  int64_t stack[DEEPEST], a, b, r = 0;
  uint32_t i, depth = 0;
  for (i = 0; i < s->length; i++) {
    const uint8_t *p = s->code + (size_t)i * 12;
    uint32_t op = u32_at(p);
    uint64_t operand = u64_at(p + 4);
    if (op == OP_CONSTANT) {
      memcpy(&stack[depth++], &operand, 8);
      continue;
    }
    if (op == OP_SYMBOL) {
      stack[depth++] = symbols[operand];
      continue;
    }
    b = stack[--depth], a = stack[--depth];
    if (op == OP_ADD && __builtin_add_overflow(a, b, &r)) return 1;
    if (op == OP_MULTIPLY && __builtin_mul_overflow(a, b, &r)) return 1;
    if (op == OP_QUOTIENT || op == OP_REST) {
      if (!b || (a == INT64_MIN && b == -1)) return 1;
      r = op == OP_QUOTIENT ? quotient(a, b) : a - quotient(a, b) * b;
    }
    if (op == OP_MAX) r = a > b ? a : b;
    if (op == OP_MIN) r = a < b ? a : b;
    stack[depth++] = r;
  }
  *out = stack[0];
  return 0;
}

/* A size that is some number of elements or bytes; 0 on success. */
static int natural(const Size *s, const int64_t *symbols, uint64_t *out) {
  int64_t n;
  if (size_value(s, symbols, &n) || n < 0) return 1;
  *out = (uint64_t)n;
  return 0;
}

tess_status_t tess_tensor_validate(const TessTensorDesc *t) {
  uint32_t i;
  uint64_t total = 1;
  if (!t) return fail(TESS_ERROR_ARGUMENT, "tensor: it is null");
  if (t->size != sizeof *t || t->version != TESS_ABI_VERSION)
    return fail(TESS_ERROR_ARGUMENT, "tensor: size %u and version %u, expected %u and %u; use tess_tensor_init", t->size,
                t->version, (unsigned)sizeof *t, TESS_ABI_VERSION);
  if (!t->dtype || t->dtype >= sizeof ITEM) return fail(TESS_ERROR_ARGUMENT, "tensor: dtype %u is unknown", t->dtype);
  if (t->rank > TESS_MAX_RANK) return fail(TESS_ERROR_ARGUMENT, "tensor: rank %u, at most %d", t->rank, TESS_MAX_RANK);
  if (t->device) return fail(TESS_ERROR_ARGUMENT, "tensor: device %u, expected 0", t->device);
  if (t->flags & ~TESS_TENSOR_OWNED) return fail(TESS_ERROR_ARGUMENT, "tensor: flags %#x are unknown", t->flags);
  for (i = 0; i < t->rank; i++)
    if (t->shape[i] < 0 || __builtin_mul_overflow(total, (uint64_t)t->shape[i], &total))
      return fail(TESS_ERROR_SHAPE, "tensor: axis %u has %lld elements", i, (long long)t->shape[i]);
  if (total > (uint64_t)INT64_MAX / 16) return fail(TESS_ERROR_SHAPE, "tensor: it has too many elements");
  return TESS_OK;
}

static uint64_t elements(const int64_t *shape, uint32_t rank) {
  uint64_t n = 1;
  while (rank--) n *= (uint64_t)shape[rank];
  return n;
}

static int is_row_major(const int64_t *shape, const int64_t *strides, uint32_t rank, uint32_t item) {
  int64_t step = item;
  while (rank--) {
    if (shape[rank] != 1 && strides[rank] != step) return 0;
    step *= shape[rank];
  }
  return 1;
}

static void set_row_major(int64_t *strides, const int64_t *shape, uint32_t rank, uint32_t item) {
  int64_t step = item;
  while (rank--) strides[rank] = step, step *= shape[rank];
}

/* The bytes before and after the first element that strides reach; 0 on success. */
static int reach(const int64_t *shape, const int64_t *strides, uint32_t rank, uint32_t item, int64_t *low, int64_t *high) {
  uint32_t i;
  *low = 0, *high = item;
  for (i = 0; i < rank; i++) {
    int64_t far;
    if (!shape[i]) return *low = *high = 0, 0;
    if (__builtin_mul_overflow(strides[i], shape[i] - 1, &far)) return 1;
    if (__builtin_add_overflow(far < 0 ? *low : *high, far, far < 0 ? low : high)) return 1;
  }
  return 0;
}

tess_status_t tess_tensor_init(TessTensorDesc *t, tess_dtype_t dtype, uint32_t rank, const int64_t *shape, void *data) {
  if (!t || (rank && !shape)) return fail(TESS_ERROR_ARGUMENT, "tess_tensor_init: null");
  memset(t, 0, sizeof *t);
  t->size = sizeof *t, t->version = TESS_ABI_VERSION, t->dtype = dtype, t->rank = rank, t->data = data;
  if (rank <= TESS_MAX_RANK && rank) memcpy(t->shape, shape, rank * sizeof *shape);
  TRY(tess_tensor_validate(t));
  set_row_major(t->strides, t->shape, rank, ITEM[dtype]);
  t->bytes = elements(t->shape, rank) * ITEM[dtype];
  return TESS_OK;
}

void tess_tensor_free(TessTensorDesc *t) {
  if (t && t->flags & TESS_TENSOR_OWNED) {
    free(t->data);
    t->data = NULL, t->flags &= ~TESS_TENSOR_OWNED;
  }
}

/* An operator: every payload that its representation has is a tensor of the right rank, every other is all 0. */
tess_status_t tess_operator_validate(const TessOperatorDesc *o) {
  static const TessTensorDesc none;
  static const int ranks[4][3] = {{2, -1, -1}, {2, 1, 2}, {-1, -1, -1}, {1, 1, 3}};
  static const int implicit[7] = {-1, -1, -1, 1, -1, 1, 1};
  int i;
  if (!o) return fail(TESS_ERROR_ARGUMENT, "operator: it is null");
  if (o->size != sizeof *o || o->version != TESS_ABI_VERSION)
    return fail(TESS_ERROR_ARGUMENT, "operator: size %u and version %u, expected %u and %u", o->size, o->version,
                (unsigned)sizeof *o, TESS_ABI_VERSION);
  if (o->repr > TESS_OP_BLOCKSPARSE) return fail(TESS_ERROR_ARGUMENT, "operator: representation %u is unknown", o->repr);
  if (o->tag > TESS_TAG_PERMUTATION || (o->repr == TESS_OP_IMPLICIT) != (o->tag != TESS_TAG_NONE))
    return fail(TESS_ERROR_ARGUMENT, "operator: tag %u does not fit representation %u", o->tag, o->repr);
  if (o->flags & ~7u || o->reserved) return fail(TESS_ERROR_ARGUMENT, "operator: flags %#x are unknown", o->flags);
  if (o->rows < 0 || o->columns < 0) return fail(TESS_ERROR_SHAPE, "operator: it has a negative size");
  for (i = 0; i < 3; i++) {
    int rank = o->repr == TESS_OP_IMPLICIT ? (i ? -1 : implicit[o->tag]) : ranks[o->repr][i];
    if (rank < 0) {
      if (memcmp(&o->payload[i], &none, sizeof none))
        return fail(TESS_ERROR_ARGUMENT, "operator: payload %d is given and has no meaning", i);
      continue;
    }
    TRY(tess_tensor_validate(&o->payload[i]));
    if ((int)o->payload[i].rank != rank || !o->payload[i].data)
      return fail(TESS_ERROR_TYPE, "operator: payload %d has rank %u, expected %d and data", i, o->payload[i].rank, rank);
  }
  if (o->repr == TESS_OP_DENSE && (o->payload[0].shape[0] != o->rows || o->payload[0].shape[1] != o->columns))
    return fail(TESS_ERROR_SHAPE, "operator: the matrix is not %lld by %lld", (long long)o->rows, (long long)o->columns);
  return TESS_OK;
}

/* Memory -------------------------------------------------------------------------------------------------------- */

enum { LINE = 64, CHUNKS = 8 };
static const uint64_t QUANTUM = 10000000; /* picoseconds of work that are worth waking a thread */
static const uint64_t MOST_BYTES = (uint64_t)1 << 48, MOST_INSTANCES = (uint64_t)1 << 48;

typedef struct {
  uint32_t slot; /* 0: the arena; then inputs, outputs, and last the weights */
  uint64_t offset;
} Place;
typedef struct {
  Function function;
  const int64_t *sizes;
  int64_t count, chunk;
  const uint32_t *buffers;
  uint32_t parameters, first; /* where its addresses begin in a run */
  double worth;
  uint32_t seats;
} Job;
typedef struct {
  uint32_t kind; /* CALL: jobs that need nothing of each other */
  uint32_t first, count, seats, step;
} Action;
typedef struct Run {
  struct Run *next;
  uint8_t *arena, *scratch;
  void **addresses;
  int64_t *counters; /* LINE bytes apart */
  uint8_t **bases;
} Run;

struct Bound {
  Bound *next;
  uint32_t threads;
  int64_t *symbol;
  int64_t (*shape)[TESS_MAX_RANK], (*stride)[TESS_MAX_RANK];
  uint64_t *bytes;
  Place *place;
  int32_t *direct; /* which output a buffer is */
  Job *job;
  int64_t *numbers; /* of jobs */
  Action *action;
  uint32_t jobs, actions, addresses;
  uint64_t arena, scratch, extra;
  Run *idle;
};

static void free_bound(Bound *b) {
  Run *r, *next;
  if (!b) return;
  for (r = b->idle; r; r = next) {
    next = r->next;
    free(r);
  }
  free(b->symbol), free(b->shape), free(b->stride), free(b->bytes), free(b->place), free(b->direct), free(b->job);
  free(b->numbers), free(b->action), free(b);
}

static void free_entry(TessEntry *e) {
  Bound *b, *next;
  uint32_t i;
  for (b = e->bound; b; b = next) {
    next = b->next;
    free_bound(b);
  }
  for (i = 0; i < e->blocks; i++) free(e->held[i]);
  free(e->symbol_names), free(e->size), free(e->binding), free(e->guard), free(e->buffer), free(e->input);
  free(e->output), free(e->kernel), free(e->step);
  if (e->code) munmap(e->code, page_up(e->code_bytes ? e->code_bytes : 1));
  pthread_mutex_destroy(&e->lock);
  free(e);
}

void tess_bundle_close(TessBundle *b) {
  TessEntry *e, *next;
  if (!b) return;
  for (e = b->entries; e; e = next) {
    next = e->next;
    free_entry(e);
  }
  if (b->data) munmap((void *)(uintptr_t)b->data, b->size);
  free(b->sections);
  pthread_mutex_destroy(&b->lock);
  free(b);
}

static tess_status_t too_large(const TessEntry *e) { return fail(TESS_ERROR_SHAPE, "%s: a size is out of range", e->name); }

static uint64_t line_up(uint64_t n) { return (n + LINE - 1) / LINE * LINE; }

/* Shapes and bytes of all buffers, and where views and weights lie. */
static tess_status_t bind_shapes(const TessEntry *e, Bound *b) {
  uint64_t room = e->bundle->weights->size - e->bundle->weights_at, whole = 0;
  uint32_t i, j;
  for (i = 0; i < e->buffers; i++) {
    const Buffer *f = &e->buffer[i];
    uint64_t total = f->item, n;
    int64_t low, high, offset = 0;
    for (j = 0; j < f->rank; j++) {
      if (natural(&e->size[f->shape[j]], b->symbol, &n) || __builtin_mul_overflow(total, n, &total)) return too_large(e);
      b->shape[i][j] = (int64_t)n;
    }
    whole += total;
    if (total > MOST_BYTES || whole > MOST_BYTES) return too_large(e);
    b->bytes[i] = total;
    set_row_major(b->stride[i], b->shape[i], f->rank, f->item);
    if (f->kind == DATA && (f->at > room || total > room - f->at)) return damaged("a weight lies outside of the file");
    if (f->kind != VIEW) continue;
    for (j = 0; j < f->rank; j++)
      if (size_value(&e->size[f->strides[j]], b->symbol, &b->stride[i][j])) return too_large(e);
    if (size_value(&e->size[f->offset], b->symbol, &offset) ||
        reach(b->shape[i], b->stride[i], f->rank, f->item, &low, &high))
      return too_large(e);
    if (total && (offset < 0 || low < -offset || high > (int64_t)b->bytes[f->base] - offset))
      return damaged("a view reaches beyond its tensor");
    b->place[i].offset = total ? (uint64_t)offset : 0;
  }
  for (i = 0; i < e->steps; i++)
    if (e->step[i].kind == COPY && b->bytes[e->step[i].in[0]] != b->bytes[e->step[i].in[1]])
      return damaged("a copy is of another size");
  return TESS_OK;
}

/* A buffer that lies in memory that others have before and after it. */
typedef struct {
  uint32_t buffer, first, last;
} Life;

static void touch(const TessEntry *e, Life *lives, uint32_t buffer, uint32_t step) {
  Life *l = &lives[e->buffer[buffer].base];
  if (l->first == UINT32_MAX) l->first = step;
  l->last = step;
}

/* Lay out the arena: each temporary at the lowest place that is free while it lives. */
static tess_status_t lay_out(const TessEntry *e, Bound *b) {
  Life *lives = malloc((e->buffers + 1) * sizeof *lives);
  uint32_t *placed = malloc((e->buffers + 1) * sizeof *placed);
  uint32_t i, j, k, n = 0;
  if (!lives || !placed) {
    free(lives), free(placed);
    return fail(TESS_ERROR_MEMORY, "%s: no memory to plan", e->name);
  }
  for (i = 0; i < e->buffers; i++) lives[i].buffer = i, lives[i].first = UINT32_MAX, lives[i].last = 0, b->direct[i] = -1;
  for (i = 0; i < e->steps; i++) {
    const Step *s = &e->step[i];
    for (j = 0; j < s->in_count; j++) touch(e, lives, s->in[j], i);
    for (j = 0; j < s->out_count; j++) touch(e, lives, s->out[j], i);
  }
  for (i = 0; i < e->outputs; i++) {
    uint32_t o = e->output[i].buffer;
    if (e->buffer[o].kind == TEMPORARY && b->direct[o] < 0) b->direct[o] = (int32_t)i;
    else touch(e, lives, o, e->steps);
  }
  for (i = 0; i < e->buffers; i++) {
    Place *p = &b->place[i];
    uint64_t at = 0;
    int moved = 1;
    const Buffer *f = &e->buffer[i];
    if (f->kind == INPUT) {
      for (j = 0; e->input[j].buffer != i; j++) {}
      p->slot = 1 + j;
    }
    if (f->kind == DATA) p->slot = 1 + e->inputs + e->outputs, p->offset = f->at;
    if (f->kind != TEMPORARY) continue;
    if (b->direct[i] >= 0) {
      p->slot = 1 + e->inputs + (uint32_t)b->direct[i];
      continue;
    }
    while (moved)
      for (moved = 0, k = 0; k < n; k++) {
        j = placed[k];
        if (lives[j].last < lives[i].first || lives[i].last < lives[j].first) continue;
        if (at < b->place[j].offset + b->bytes[j] && b->place[j].offset < at + b->bytes[i])
          at = line_up(b->place[j].offset + b->bytes[j]), moved = 1;
      }
    p->offset = at, placed[n++] = i;
    if (at + b->bytes[i] > b->arena) b->arena = at + b->bytes[i];
  }
  for (i = 0; i < e->buffers; i++)
    if (e->buffer[i].kind == VIEW) {
      const Place *base = &b->place[e->buffer[i].base];
      b->place[i].slot = base->slot, b->place[i].offset += base->offset;
    }
  b->arena = line_up(b->arena);
  free(lives), free(placed);
  return TESS_OK;
}

/* Jobs and phases ----------------------------------------------------------------------------------------------- */

static tess_status_t make_job(const TessEntry *e, Bound *b, uint32_t kernel, uint32_t threads, int64_t *numbers, Job *job) {
  const Kernel *k = &e->kernel[kernel];
  uint64_t count, scratch, work, grain = 1, used, most;
  const uint8_t *at = e->code + k->at;
  uint32_t i;
  if (natural(&e->size[k->count], b->symbol, &count) || natural(&e->size[k->scratch], b->symbol, &scratch) ||
      natural(&e->size[k->work], b->symbol, &work) || scratch > (uint64_t)1 << 40 ||
      count > MOST_INSTANCES || work > MOST_INSTANCES)
    return too_large(e);
  memcpy(&job->function, &at, sizeof at);
  for (i = 0; i < k->size_count; i++) numbers[i] = b->symbol[k->sizes[i]];
  if (work) grain = (QUANTUM + work - 1) / work;
  most = (count + grain - 1) / grain;
  used = most < threads ? most : threads;
  if (!used) used = 1;
  job->chunk = (int64_t)((count + used * CHUNKS - 1) / (used * CHUNKS));
  if (job->chunk < (int64_t)grain) job->chunk = (int64_t)grain;
  job->sizes = numbers, job->count = (int64_t)count, job->seats = (uint32_t)used - 1;
  job->worth = (double)count / (double)grain;
  if (scratch > b->scratch) b->scratch = scratch;
  return TESS_OK;
}

/* Whether two steps may not run at once: one writes what the other touches. */
static int waits(const TessEntry *e, const Bound *b, const Job *x, const uint8_t *x_writes, const Job *y,
                 const uint8_t *y_writes) {
  uint32_t i, j;
  for (i = 0; i < x->parameters; i++)
    for (j = 0; j < y->parameters; j++) {
      uint32_t m = e->buffer[x->buffers[i]].base, n = e->buffer[y->buffers[j]].base;
      if (!x_writes[i] && !y_writes[j]) continue;
      if (b->place[m].slot != b->place[n].slot) continue;
      if (b->place[m].offset < b->place[n].offset + b->bytes[n] && b->place[n].offset < b->place[m].offset + b->bytes[m])
        return 1;
    }
  return 0;
}

static tess_status_t make_actions(const TessEntry *e, Bound *b, uint32_t threads) {
  uint32_t i, j, total = 0, numbers = 0;
  for (i = 0; i < e->steps; i++)
    if (e->step[i].kind != COPY) {
      total += e->step[i].kind == CALL ? e->step[i].in_count : e->kernel[e->step[i].kernel].parameters;
      numbers += e->kernel[e->step[i].kernel].size_count;
    }
  b->job = calloc(e->steps + 1, sizeof *b->job);
  b->action = calloc(e->steps + 1, sizeof *b->action);
  b->numbers = calloc((size_t)numbers + 1, sizeof *b->numbers);
  if (!b->job || !b->action || !b->numbers) return fail(TESS_ERROR_MEMORY, "%s: no memory to plan", e->name);
  numbers = 0;
  for (i = 0; i < e->steps; i++) {
    const Step *s = &e->step[i];
    Job *job = &b->job[b->jobs];
    Action *a = b->actions ? &b->action[b->actions - 1] : NULL;
    int joins = a && a->kind == CALL && s->kind == CALL && a->count < MOST_TOGETHER;
    if (s->kind != COPY) {
      int64_t usual = 0;
      if (s->kind == SCAN) { /* its kernel has the number of steps as a size */
        usual = b->symbol[e->scan_symbol];
        if (size_value(&e->size[s->length], b->symbol, &b->symbol[e->scan_symbol])) return too_large(e);
      }
      TRY(make_job(e, b, s->kernel, threads, b->numbers + numbers, job));
      if (s->kind == SCAN) b->symbol[e->scan_symbol] = usual;
      numbers += e->kernel[s->kernel].size_count;
      job->buffers = s->in, job->parameters = s->kind == CALL ? s->in_count : e->kernel[s->kernel].parameters;
      job->first = b->addresses;
      if (s->kind == CALL && !job->count) continue;
    }
    if (joins) {
      uint32_t step = a->step, seen = 0;
      for (; joins && step < i; step++) {
        if (e->step[step].kind != CALL || seen >= a->count || b->job[a->first + seen].buffers != e->step[step].in) continue;
        if (waits(e, b, &b->job[a->first + seen], e->kernel[e->step[step].kernel].writable, job, e->kernel[s->kernel].writable))
          joins = 0;
        seen++;
      }
    }
    if (!joins) {
      a = &b->action[b->actions++];
      a->kind = s->kind, a->first = b->jobs, a->step = i;
    }
    if (s->kind != COPY) b->jobs++, a->count++, b->addresses += job->parameters;
  }
  for (i = 0; i < b->actions; i++) {
    Action *a = &b->action[i];
    double worth = 0;
    for (j = 0; j < a->count; j++) {
      const Job *job = &b->job[a->first + j];
      worth += job->worth;
      if (job->seats > a->seats) a->seats = job->seats;
    }
    worth = worth < threads ? worth : threads;
    if (worth >= 1 && (uint32_t)worth - 1 > a->seats) a->seats = (uint32_t)worth - 1;
  }
  return TESS_OK;
}

static tess_status_t loop_memory(const TessEntry *e, Bound *b) {
  uint32_t i, j;
  for (i = 0; i < e->steps; i++) {
    const Step *s = &e->step[i];
    uint64_t need = 0;
    if (s->kind < WHILE) continue;
    for (j = 0; j < s->carry; j++) {
      need += line_up(b->bytes[s->out[j]]);
      if (b->bytes[s->out[j]] != b->bytes[s->in[j]]) return damaged("a loop carries another size");
    }
    if (need > b->extra) b->extra = need;
  }
  return TESS_OK;
}

static tess_status_t make_bound(const TessEntry *e, const int64_t *symbols, uint32_t threads, Bound **out) {
  Bound *b = calloc(1, sizeof *b);
  size_t n = e->buffers + 1;
  tess_status_t status;
  if (!b) return fail(TESS_ERROR_MEMORY, "%s: no memory to plan", e->name);
  b->threads = threads;
  b->symbol = malloc((e->symbols + 1) * sizeof *b->symbol);
  b->shape = calloc(n, sizeof *b->shape), b->stride = calloc(n, sizeof *b->stride);
  b->bytes = calloc(n, sizeof *b->bytes), b->place = calloc(n, sizeof *b->place), b->direct = calloc(n, sizeof *b->direct);
  if (!b->symbol || !b->shape || !b->stride || !b->bytes || !b->place || !b->direct)
    status = fail(TESS_ERROR_MEMORY, "%s: no memory to plan", e->name);
  else {
    memcpy(b->symbol, symbols, e->symbols * sizeof *symbols);
    status = bind_shapes(e, b);
    if (!status) status = lay_out(e, b);
    if (!status) status = make_actions(e, b, threads);
    if (!status) status = loop_memory(e, b);
  }
  if (status) free_bound(b);
  else *out = b;
  return status;
}

/* Threads ------------------------------------------------------------------------------------------------------- */

typedef struct {
  const Bound *bound;
  const Action *action;
  Run *run;
} Work;

static struct {
  pthread_mutex_t lock, launch;
  pthread_cond_t wake, done;
  uint32_t started, sleeping, seats, active, generation;
  Work work;
} pool = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, PTHREAD_COND_INITIALIZER,
          0, 0, 0, 0, 1, {NULL, NULL, NULL}};
static uint32_t wanted_threads;

static uint32_t cores(void) {
#ifdef CPU_COUNT
  cpu_set_t set;
  if (!sched_getaffinity(0, sizeof set, &set)) return (uint32_t)CPU_COUNT(&set);
#endif
  long n = sysconf(_SC_NPROCESSORS_ONLN);
  return n > 0 ? (uint32_t)n : 1;
}

uint32_t tess_threads(void) {
  uint32_t n = __atomic_load_n(&wanted_threads, __ATOMIC_RELAXED);
  return n ? n : cores();
}

tess_status_t tess_set_threads(uint32_t n) {
  if (n > 1023) return fail(TESS_ERROR_ARGUMENT, "tess_set_threads: %u threads, at most 1023", n);
  __atomic_store_n(&wanted_threads, n, __ATOMIC_RELAXED);
  return TESS_OK;
}

static void pause_a_little(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb" ::: "memory");
#endif
}

/* Take chunks of the jobs of a phase, one job after another, until none is left. */
static void take_chunks(const Work *w, uint32_t seat) {
  uint32_t i;
  for (i = 0; i < w->action->count; i++) {
    const Job *job = &w->bound->job[w->action->first + i];
    int64_t *next = w->run->counters + (size_t)i * (LINE / sizeof(int64_t));
    void *scratch = w->run->scratch + (size_t)seat * line_up(w->bound->scratch);
    for (;;) {
      int64_t begin = __atomic_fetch_add(next, job->chunk, __ATOMIC_RELAXED), end = begin + job->chunk;
      if (begin >= job->count) break;
      job->function(w->run->addresses + job->first, job->sizes, begin, end < job->count ? end : job->count, scratch);
    }
  }
}

static void *worker(void *none) {
  uint32_t seen = 0, i, seat;
  Work work;
  (void)none;
  for (;;) {
    for (i = 0; i < 2000 && __atomic_load_n(&pool.generation, __ATOMIC_ACQUIRE) == seen; i++) pause_a_little();
    pthread_mutex_lock(&pool.lock);
    while (pool.generation == seen) {
      pool.sleeping++;
      pthread_cond_wait(&pool.wake, &pool.lock);
      pool.sleeping--;
    }
    seen = pool.generation;
    seat = pool.seats;
    if (seat) pool.seats--, pool.active++, work = pool.work;
    pthread_mutex_unlock(&pool.lock);
    if (!seat) continue;
    take_chunks(&work, seat);
    pthread_mutex_lock(&pool.lock);
    __atomic_sub_fetch(&pool.active, 1, __ATOMIC_RELEASE);
    if (!pool.active) pthread_cond_signal(&pool.done);
    pthread_mutex_unlock(&pool.lock);
  }
  return NULL;
}

static void start_workers(uint32_t n) {
  pthread_attr_t attributes;
  pthread_t thread;
  if (pool.started >= n || pthread_attr_init(&attributes)) return;
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  while (pool.started < n && !pthread_create(&thread, &attributes, worker, NULL)) pool.started++;
  pthread_attr_destroy(&attributes);
}

/* Run a phase; a thread that finds the pool taken runs it alone, with the same bits. */
static void run_phase(const Bound *b, const Action *a, Run *r) {
  Work work;
  uint32_t i;
  work.bound = b, work.action = a, work.run = r;
  if (!a->seats) {
    for (i = 0; i < a->count; i++) {
      const Job *job = &b->job[a->first + i];
      job->function(r->addresses + job->first, job->sizes, 0, job->count, r->scratch);
    }
    return;
  }
  for (i = 0; i < a->count; i++) r->counters[(size_t)i * (LINE / sizeof(int64_t))] = 0;
  if (pthread_mutex_trylock(&pool.launch)) {
    take_chunks(&work, 0);
    return;
  }
  pthread_mutex_lock(&pool.lock);
  start_workers(a->seats);
  pool.work = work, pool.seats = a->seats;
  __atomic_add_fetch(&pool.generation, 1, __ATOMIC_RELEASE);
  if (pool.sleeping) pthread_cond_broadcast(&pool.wake);
  pthread_mutex_unlock(&pool.lock);
  take_chunks(&work, 0);
  pthread_mutex_lock(&pool.lock);
  pool.seats = 0;
  if (pool.active) {
    pthread_mutex_unlock(&pool.lock);
    for (i = 0; i < 2000 && __atomic_load_n(&pool.active, __ATOMIC_ACQUIRE); i++) pause_a_little();
    pthread_mutex_lock(&pool.lock);
    while (pool.active) pthread_cond_wait(&pool.done, &pool.lock);
  }
  pthread_mutex_unlock(&pool.lock);
  pthread_mutex_unlock(&pool.launch);
}

/* Running ------------------------------------------------------------------------------------------------------- */

static void copy_strided(uint8_t *to, const uint8_t *from, const int64_t *shape, const int64_t *strides, uint32_t rank,
                         uint32_t item) {
  int64_t i, block;
  if (is_row_major(shape, strides, rank, item)) {
    memcpy(to, from, elements(shape, rank) * item);
    return;
  }
  block = (int64_t)(elements(shape + 1, rank - 1) * item);
  for (i = 0; i < shape[0]; i++)
    copy_strided(to + i * block, from + i * strides[0], shape + 1, strides + 1, rank - 1, item);
}

static uint8_t *address(const Bound *b, const Run *r, uint32_t buffer) {
  return r->bases[b->place[buffer].slot] + b->place[buffer].offset;
}

static void copy_buffer(const TessEntry *e, const Bound *b, const Run *r, uint8_t *to, uint32_t from) {
  if (b->bytes[from])
    copy_strided(to, address(b, r, from), b->shape[from], b->stride[from], e->buffer[from].rank, e->buffer[from].item);
}

/* A loop that is one kernel: launches with what is carried in, what is given, what is carried out, and rows. */
static tess_status_t run_loop(const TessEntry *e, const Bound *b, const Action *a, Run *r) {
  const Step *s = &e->step[a->step];
  const Job *job = &b->job[a->first];
  void **p = r->addresses + job->first;
  uint8_t going = 1, *spare = r->arena + b->arena;
  int64_t done = 0, length = 1;
  uint32_t i, turn = 0, odd;
  uint64_t at = 0;
  if (s->kind == SCAN && (size_value(&e->size[s->length], b->symbol, &length) || length < 0)) return too_large(e);
  for (i = 0; i < s->in_count; i++) p[i] = address(b, r, s->in[i]);
  for (i = s->carry; s->kind == SCAN && i < s->out_count; i++)
    if (b->shape[s->out[i]][0] != length) return damaged("a loop makes another number of rows");
  for (i = s->carry; s->kind == SCAN && i < s->carry + s->xs; i++)
    if (b->shape[s->in[i]][0] != length) return damaged("a loop runs over another number of rows");
  for (turn = 0; s->kind == WHILE ? going : done < length; turn++) {
    odd = turn & 1;
    for (i = 0, at = 0; i < s->carry; i++) {
      uint8_t *own = address(b, r, s->out[i]);
      p[s->in_count + i] = odd ? spare + at : own;
      if (turn) p[i] = odd ? own : spare + at;
      at += line_up(b->bytes[s->out[i]]);
    }
    for (; i < s->out_count; i++) p[s->in_count + i] = address(b, r, s->out[i]);
    if (s->kind == WHILE) p[s->in_count + s->out_count] = &going;
    job->function((void *const *)p, job->sizes, 0, job->count, r->scratch);
    done = length; /* a scan is one launch: nobody waits to interrupt it */
  }
  if (!turn) /* no step was run: what is carried out is what was carried in */
    for (i = 0; i < s->carry; i++) memmove(address(b, r, s->out[i]), p[i], b->bytes[s->out[i]]);
  else if (!(turn & 1))
    for (i = 0, at = 0; i < s->carry; i++) {
      memcpy(address(b, r, s->out[i]), spare + at, b->bytes[s->out[i]]);
      at += line_up(b->bytes[s->out[i]]);
    }
  return TESS_OK;
}

static Run *take_run(const TessEntry *e, Bound *b) {
  uint64_t arena = line_up(b->arena + b->extra), scratch = line_up(b->scratch) * b->threads;
  uint64_t addresses = line_up(((uint64_t)b->addresses + 1) * sizeof(void *)), head = line_up(sizeof(Run));
  uint64_t counters = (uint64_t)MOST_TOGETHER * LINE, bases = ((uint64_t)e->inputs + e->outputs + 2) * sizeof(void *);
  void *p = NULL;
  uint8_t *at;
  Run *r = b->idle;
  if (r) {
    b->idle = r->next;
    return r;
  }
  if (arena + scratch < arena || posix_memalign(&p, LINE, head + addresses + counters + arena + scratch + bases)) return NULL;
  at = p, r = p;
  memset(p, 0, head + addresses + counters);
  r->addresses = (void **)(void *)(at + head), at += head + addresses;
  r->counters = (int64_t *)(void *)at, at += counters;
  r->arena = at, at += arena;
  r->scratch = at, at += scratch;
  r->bases = (uint8_t **)(void *)at;
  return r;
}

/* The sizes of a call from the shapes of its inputs. */
static tess_status_t solve(const TessEntry *e, const TessTensorDesc *inputs, int64_t *symbols) {
  uint32_t i, j;
  int64_t rest, n, left, right;
  memset(symbols, 0, e->symbols * sizeof *symbols);
  for (i = 0; i < e->inputs; i++) {
    const TessTensorDesc *t = &inputs[i];
    const Buffer *f = &e->buffer[e->input[i].buffer];
    TRY(tess_tensor_validate(t));
    if (t->dtype != f->dtype || t->rank != f->rank)
      return fail(TESS_ERROR_TYPE, "%s: input %u '%s' has dtype %u and rank %u, expected %u and %u", e->name, i,
                  e->input[i].name, t->dtype, t->rank, f->dtype, f->rank);
  }
  for (i = 0; i < e->bindings; i++) {
    const Binding *b = &e->binding[i];
    int64_t size = inputs[b->input].shape[b->axis];
    if (size_value(&e->size[b->rest], symbols, &rest) || __builtin_sub_overflow(size, rest, &n)) return too_large(e);
    if ((n == INT64_MIN && b->factor == -1) || n % b->factor || n / b->factor < (int64_t)b->least)
      return fail(TESS_ERROR_SHAPE, "%s: input %u '%s': axis %u has %lld elements, which no size gives", e->name, b->input,
                  e->input[b->input].name, b->axis, (long long)size);
    symbols[b->symbol] = n / b->factor;
  }
  for (i = 0; i < e->inputs; i++) {
    const Buffer *f = &e->buffer[e->input[i].buffer];
    for (j = 0; j < f->rank; j++) {
      if (size_value(&e->size[f->shape[j]], symbols, &n)) return too_large(e);
      if (n != inputs[i].shape[j])
        return fail(TESS_ERROR_SHAPE, "%s: input %u '%s': axis %u has %lld elements, expected %lld", e->name, i,
                    e->input[i].name, j, (long long)inputs[i].shape[j], (long long)n);
    }
  }
  for (i = 0; i < e->guards; i++) {
    const Guard *g = &e->guard[i];
    if (size_value(&e->size[g->left], symbols, &left) || size_value(&e->size[g->right], symbols, &right)) return too_large(e);
    if (g->kind == 0 ? left != right : g->kind == 1 ? !right || (right != -1 && left % right) : left < right)
      return fail(TESS_ERROR_SHAPE, "%s: %.*s: %lld does not fit %lld", e->name, (int)(g->reason_bytes < 255 ? g->reason_bytes : 255),
                  (const char *)g->reason, (long long)left, (long long)right);
  }
  return TESS_OK;
}

/* The program at the sizes of a call, made when they are first seen; the entry is locked. */
static tess_status_t bound_for(TessEntry *e, const TessTensorDesc *inputs, uint32_t count, Bound **out) {
  int64_t few[32], *symbols = few;
  uint32_t threads = tess_threads();
  tess_status_t status;
  Bound *b = NULL;
  if (count != e->inputs || (count && !inputs))
    return fail(TESS_ERROR_ARGUMENT, "%s: got %u inputs, expected %u", e->name, count, e->inputs);
  if (e->symbols > 32 && !(symbols = malloc(e->symbols * sizeof *symbols)))
    return fail(TESS_ERROR_MEMORY, "%s: no memory", e->name);
  status = solve(e, inputs, symbols);
  for (b = e->bound; !status && b; b = b->next)
    if (b->threads == threads && !memcmp(b->symbol, symbols, e->symbols * sizeof *symbols)) break;
  if (!status && !b) {
    status = make_bound(e, symbols, threads, &b);
    if (!status) {
      b->next = e->bound, e->bound = b;
    }
  }
  if (symbols != few) free(symbols);
  *out = b;
  return status;
}

static void describe_outputs(const TessEntry *e, const Bound *b, TessTensorDesc *outputs) {
  uint32_t i;
  for (i = 0; i < e->outputs; i++) {
    uint32_t o = e->output[i].buffer, rank = e->buffer[o].rank;
    TessTensorDesc *t = &outputs[i];
    memset(t, 0, sizeof *t);
    t->size = sizeof *t, t->version = TESS_ABI_VERSION, t->dtype = e->buffer[o].dtype, t->rank = rank;
    memcpy(t->shape, b->shape[o], sizeof t->shape);
    set_row_major(t->strides, t->shape, rank, e->buffer[o].item);
    t->bytes = b->bytes[o];
  }
}

tess_status_t tess_entry_plan(TessEntry *e, const TessTensorDesc *inputs, uint32_t input_count, TessTensorDesc *outputs,
                              uint32_t output_count, uint64_t *bytes) {
  Bound *b = NULL;
  tess_status_t status;
  if (!e || (output_count && !outputs)) return fail(TESS_ERROR_ARGUMENT, "tess_entry_plan: null");
  if (output_count != e->outputs)
    return fail(TESS_ERROR_ARGUMENT, "%s: room for %u outputs, expected %u", e->name, output_count, e->outputs);
  pthread_mutex_lock(&e->lock);
  status = bound_for(e, inputs, input_count, &b);
  pthread_mutex_unlock(&e->lock);
  if (status) return status;
  describe_outputs(e, b, outputs);
  if (bytes) *bytes = b->arena + b->extra + line_up(b->scratch) * b->threads;
  return TESS_OK;
}

static int overlap(const void *a, uint64_t n, const void *b, uint64_t m) {
  uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
  return n && m && x < y + m && y < x + n;
}

/* The memory of the outputs: the caller's, checked, or new. */
static tess_status_t take_outputs(const TessEntry *e, const Bound *b, const TessTensorDesc *inputs, TessTensorDesc *outputs,
                                  Run *r) {
  uint32_t i, j;
  for (i = 0; i < e->outputs; i++) {
    uint32_t o = e->output[i].buffer, rank = e->buffer[o].rank, item = e->buffer[o].item;
    TessTensorDesc *t = &outputs[i], made;
    if (!t->data) {
      memset(&made, 0, sizeof made);
      made.size = sizeof made, made.version = TESS_ABI_VERSION, made.dtype = e->buffer[o].dtype, made.rank = rank;
      memcpy(made.shape, b->shape[o], sizeof made.shape);
      set_row_major(made.strides, made.shape, rank, item);
      made.bytes = b->bytes[o], made.flags = TESS_TENSOR_OWNED;
      if (posix_memalign(&made.data, LINE, b->bytes[o] + 1))
        return fail(TESS_ERROR_MEMORY, "%s: no memory for output %u of %llu bytes", e->name, i,
                    (unsigned long long)b->bytes[o]);
      *t = made;
    } else {
      TRY(tess_tensor_validate(t));
      if (t->dtype != e->buffer[o].dtype || t->rank != rank)
        return fail(TESS_ERROR_TYPE, "%s: output %u has dtype %u and rank %u, expected %u and %u", e->name, i, t->dtype,
                    t->rank, e->buffer[o].dtype, rank);
      if (memcmp(t->shape, b->shape[o], rank * sizeof *t->shape) || t->bytes < b->bytes[o] ||
          !is_row_major(t->shape, t->strides, rank, item) || (uintptr_t)t->data % item)
        return fail(TESS_ERROR_SHAPE, "%s: output %u is not a row-major tensor of the result's shape; see tess_entry_plan",
                    e->name, i);
      for (j = 0; j < e->inputs; j++)
        if (overlap(t->data, b->bytes[o], inputs[j].data, inputs[j].bytes))
          return fail(TESS_ERROR_ARGUMENT, "%s: output %u overlaps input %u", e->name, i, j);
      for (j = 0; j < i; j++)
        if (overlap(t->data, b->bytes[o], outputs[j].data, outputs[j].bytes))
          return fail(TESS_ERROR_ARGUMENT, "%s: output %u overlaps output %u", e->name, i, j);
    }
    r->bases[1 + e->inputs + i] = t->data;
  }
  return TESS_OK;
}

/* The memory of the inputs: the caller's, or a copy whose elements lie in order. */
static tess_status_t take_inputs(const TessEntry *e, const Bound *b, const TessTensorDesc *inputs, Run *r) {
  uint32_t i;
  for (i = 0; i < e->inputs; i++) {
    const TessTensorDesc *t = &inputs[i];
    uint32_t o = e->input[i].buffer, item = e->buffer[o].item;
    int64_t low, high;
    if (b->bytes[o] && !t->data) return fail(TESS_ERROR_ARGUMENT, "%s: input %u has no data", e->name, i);
    if (is_row_major(t->shape, t->strides, t->rank, item) && (uintptr_t)t->data % item == 0) {
      if (t->bytes < b->bytes[o])
        return fail(TESS_ERROR_ARGUMENT, "%s: input %u has %llu bytes, expected %llu", e->name, i,
                    (unsigned long long)t->bytes, (unsigned long long)b->bytes[o]);
      r->bases[1 + i] = t->data;
      continue;
    }
    if (reach(t->shape, t->strides, t->rank, item, &low, &high) || low < 0 || (uint64_t)high > t->bytes)
      return fail(TESS_ERROR_ARGUMENT, "%s: the strides of input %u reach beyond its memory", e->name, i);
    r->bases[1 + i] = malloc(b->bytes[o] + 1);
    if (!r->bases[1 + i]) return fail(TESS_ERROR_MEMORY, "%s: no memory for a copy of input %u", e->name, i);
    if (b->bytes[o]) copy_strided(r->bases[1 + i], t->data, t->shape, t->strides, t->rank, item);
  }
  return TESS_OK;
}

static tess_status_t run_actions(const TessEntry *e, const Bound *b, Run *r) {
  uint32_t i, j;
  for (i = 0; i < b->actions; i++) {
    const Action *a = &b->action[i];
    if (a->kind == COPY) {
      const Step *s = &e->step[a->step];
      copy_buffer(e, b, r, address(b, r, s->in[0]), s->in[1]);
    } else if (a->kind == CALL) {
      for (j = 0; j < a->count; j++) {
        const Job *job = &b->job[a->first + j];
        void **p = r->addresses + job->first;
        uint32_t k;
        for (k = 0; k < job->parameters; k++) p[k] = address(b, r, job->buffers[k]);
      }
      run_phase(b, a, r);
    } else {
      TRY(run_loop(e, b, a, r));
    }
  }
  for (i = 0; i < e->outputs; i++)
    if (b->direct[e->output[i].buffer] != (int32_t)i)
      copy_buffer(e, b, r, r->bases[1 + e->inputs + i], e->output[i].buffer);
  return TESS_OK;
}

tess_status_t tess_entry_run(TessEntry *e, const TessTensorDesc *inputs, uint32_t input_count, TessTensorDesc *outputs,
                             uint32_t output_count) {
  Bound *b = NULL;
  Run *r = NULL;
  tess_status_t status;
  uint32_t i;
  if (!e || (output_count && !outputs)) return fail(TESS_ERROR_ARGUMENT, "tess_entry_run: null");
  if (output_count != e->outputs)
    return fail(TESS_ERROR_ARGUMENT, "%s: room for %u outputs, expected %u", e->name, output_count, e->outputs);
  if (e->bundle->flags & TESS_OPEN_UNVERIFIED)
    return fail(TESS_ERROR_DIGEST, "%s: the bundle was opened unverified; what is not verified is not run", e->name);
  pthread_mutex_lock(&e->lock);
  status = bound_for(e, inputs, input_count, &b);
  if (!status && !(r = take_run(e, b))) status = fail(TESS_ERROR_MEMORY, "%s: no memory for a run", e->name);
  pthread_mutex_unlock(&e->lock);
  if (status) return status;
  memset(r->bases, 0, ((size_t)e->inputs + e->outputs + 2) * sizeof *r->bases);
  r->bases[0] = r->arena;
  r->bases[1 + e->inputs + e->outputs] = (uint8_t *)(uintptr_t)(e->bundle->weights->data + e->bundle->weights_at);
  status = take_inputs(e, b, inputs, r);
  if (!status) status = take_outputs(e, b, inputs, outputs, r);
  if (!status) status = run_actions(e, b, r);
  for (i = 0; i < e->inputs; i++)
    if (r->bases[1 + i] && r->bases[1 + i] != inputs[i].data) free(r->bases[1 + i]);
  if (status)
    for (i = 0; i < e->outputs; i++)
      if (outputs[i].flags & TESS_TENSOR_OWNED && r->bases[1 + e->inputs + i] == outputs[i].data) tess_tensor_free(&outputs[i]);
  pthread_mutex_lock(&e->lock);
  r->next = b->idle, b->idle = r;
  pthread_mutex_unlock(&e->lock);
  return status;
}

/* Looking at entry points --------------------------------------------------------------------------------------- */

const char *tess_entry_target(const TessEntry *e) { return e ? e->target : ""; }
const char *tess_entry_numerics(const TessEntry *e) { return e ? e->numerics : ""; }
uint32_t tess_entry_input_count(const TessEntry *e) { return e ? e->inputs : 0; }
uint32_t tess_entry_output_count(const TessEntry *e) { return e ? e->outputs : 0; }
uint32_t tess_entry_kernel_count(const TessEntry *e) { return e ? e->kernels : 0; }

/* A size that is a number at every call; 0 on success. */
static int fixed_size(const Size *s, int64_t *out) {
  uint32_t k;
  for (k = 0; k < s->length; k++)
    if (u32_at(s->code + (size_t)k * 12) == OP_SYMBOL) return 1;
  return size_value(s, NULL, out);
}

static tess_status_t describe(const TessEntry *e, const Value *v, TessValueInfo *out) {
  const Buffer *f = &e->buffer[v->buffer];
  uint32_t j;
  memset(out, 0, sizeof *out);
  out->size = sizeof *out, out->version = TESS_ABI_VERSION, out->dtype = f->dtype, out->rank = f->rank;
  memcpy(out->name, v->name, sizeof out->name);
  for (j = 0; j < f->rank; j++)
    if (fixed_size(&e->size[f->shape[j]], &out->shape[j])) out->shape[j] = -1;
  return TESS_OK;
}

tess_status_t tess_entry_input(const TessEntry *e, uint32_t i, TessValueInfo *out) {
  if (!e || !out || i >= e->inputs) return fail(TESS_ERROR_ARGUMENT, "tess_entry_input: there is no input %u", i);
  return describe(e, &e->input[i], out);
}

tess_status_t tess_entry_output(const TessEntry *e, uint32_t i, TessValueInfo *out) {
  if (!e || !out || i >= e->outputs) return fail(TESS_ERROR_ARGUMENT, "tess_entry_output: there is no output %u", i);
  return describe(e, &e->output[i], out);
}

tess_status_t tess_entry_kernel(const TessEntry *e, uint32_t i, TessKernelDesc *out) {
  const Kernel *k;
  int64_t n;
  if (!e || !out || i >= e->kernels) return fail(TESS_ERROR_ARGUMENT, "tess_entry_kernel: there is no kernel %u", i);
  k = &e->kernel[i];
  memset(out, 0, sizeof *out);
  out->size = sizeof *out, out->version = TESS_ABI_VERSION, out->arch = e->arch, out->num_tiles = 1;
  memcpy(out->name, k->name, sizeof out->name);
  out->tiles[0].size = sizeof out->tiles[0], out->tiles[0].version = TESS_ABI_VERSION;
  out->tiles[0].vector = e->arch == TESS_ARCH_X86_64_V4 ? 64 : e->arch == TESS_ARCH_X86_64_V3 ? 32 : 16;
  if (!fixed_size(&e->size[k->count], &n)) out->tiles[0].instances = (uint64_t)n; /* else a launch tells */
  if (!fixed_size(&e->size[k->scratch], &n)) out->tiles[0].scratch = (uint64_t)n;
  return TESS_OK;
}
