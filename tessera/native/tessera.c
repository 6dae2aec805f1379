/* tessera.c: the runtime of bundles.  It needs libc, POSIX threads and dlopen; build it with any C99 compiler.
 *
 *   cc -O2 -pthread -I include program.c tessera.c
 *
 * In order: errors, SHA-256, the file, plans, sizes, memory, machine code, threads, running, GPUs, operators.  A reader believes nothing
 * in a file before it is checked, also when digests fit: they tell who damaged a file, not who wrote it.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "tessera/tessera.h"

#include <dlfcn.h>
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
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <arm_neon.h>
#include <sys/auxv.h>
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

static int processor_has_sha(void) {
  uint32_t a, b, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && b >> 29 & 1 && __builtin_cpu_supports("sse4.1");
}
#define SHA_INSTRUCTIONS 1
#elif defined(__aarch64__) && defined(__linux__) && (!defined(__clang__) || __clang_major__ >= 16 || defined(__ARM_FEATURE_SHA2))
#if defined(__clang__)
__attribute__((target("sha2")))
#else
__attribute__((target("+crypto")))
#endif
static void sha_blocks_by_instruction(uint32_t *h, const uint8_t *p, uint64_t n) {
  uint32x4_t s0 = vld1q_u32(h), s1 = vld1q_u32(h + 4);
  for (; n; n--, p += 64) {
    uint32x4_t a = s0, b = s1, w[4], x, t;
    int i;
    for (i = 0; i < 4; i++) w[i] = vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(p + 16 * i)));
    for (i = 0; i < 16; i++) {
      if (i > 3) w[i & 3] = vsha256su1q_u32(vsha256su0q_u32(w[i & 3], w[(i + 1) & 3]), w[(i + 2) & 3], w[(i + 3) & 3]);
      x = vaddq_u32(w[i & 3], vld1q_u32(K256 + 4 * i));
      t = s0;
      s0 = vsha256hq_u32(s0, s1, x);
      s1 = vsha256h2q_u32(s1, t, x);
    }
    s0 = vaddq_u32(s0, a), s1 = vaddq_u32(s1, b);
  }
  vst1q_u32(h, s0), vst1q_u32(h + 4, s1);
}

static int processor_has_sha(void) { return getauxval(AT_HWCAP) >> 6 & 1; } /* HWCAP_SHA2 */
#define SHA_INSTRUCTIONS 1
#endif

/* Whether the processor has such instructions, and they agree with the code above on two blocks. */
static int has_sha(void) {
#if defined(SHA_INSTRUCTIONS)
  static int known; /* 0: not yet, 1: no, 2: yes */
  int found = __atomic_load_n(&known, __ATOMIC_RELAXED);
  uint32_t i, x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, y[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  uint8_t sample[128];
  if (found) return found == 2;
  found = 1;
  if (processor_has_sha()) {
    for (i = 0; i < 128; i++) sample[i] = (uint8_t)(i * 37 + 11);
    sha_block(x, sample);
    sha_block(x, sample + 64);
    sha_blocks_by_instruction(y, sample, 2);
    if (!memcmp(x, y, sizeof x)) found = 2;
  }
  __atomic_store_n(&known, found, __ATOMIC_RELAXED);
  return found == 2;
#else
  return 0;
#endif
}

static void sha_blocks(uint32_t *h, const uint8_t *p, uint64_t n) {
#if defined(SHA_INSTRUCTIONS)
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

/* SHA-256 of several pieces at once, one in each lane of a vector ------------------------------------------------- */

enum { PIECE = 16384, MOST_LANES = 16 };

/* Digests of `lanes` pieces of PIECE bytes that follow each other. */
#define SHA_LANES(name, lanes, attributes)                                                                          \
  attributes static void name(const uint8_t *data, uint8_t (*out)[32]) {                                            \
    typedef uint32_t V __attribute__((vector_size(4 * lanes)));                                                     \
    static const uint32_t start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,                               \
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};                              \
    V h[8], s[8], w[16], t, u, x, y;                                                                                \
    uint32_t word, block, i, j;                                                                                     \
    for (i = 0; i < 8; i++) h[i] = (V){0} + start[i];                                                               \
    for (block = 0; block <= PIECE / 64; block++) {                                                                 \
      for (i = 0; i < 16; i++) {                                                                                    \
        if (block == PIECE / 64) { /* what follows a message of this length */                                      \
          w[i] = (V){0} + (i == 0 ? 0x80000000u : i == 15 ? PIECE * 8u : 0u);                                       \
          continue;                                                                                                 \
        }                                                                                                           \
        for (j = 0; j < lanes; j++) {                                                                               \
          memcpy(&word, data + (size_t)j * PIECE + block * 64 + i * 4, 4);                                          \
          w[i][j] = __builtin_bswap32(word);                                                                        \
        }                                                                                                           \
      }                                                                                                             \
      for (i = 0; i < 8; i++) s[i] = h[i];                                                                          \
      for (i = 0; i < 64; i++) {                                                                                    \
        if (i > 15) {                                                                                               \
          x = w[(i + 1) & 15], y = w[(i + 14) & 15];                                                                \
          w[i & 15] += w[(i + 9) & 15] + (ROTATE(x, 7) ^ ROTATE(x, 18) ^ x >> 3) +                                  \
                       (ROTATE(y, 17) ^ ROTATE(y, 19) ^ y >> 10);                                                   \
        }                                                                                                           \
        x = s[4], y = s[0];                                                                                         \
        t = s[7] + (ROTATE(x, 6) ^ ROTATE(x, 11) ^ ROTATE(x, 25)) + (s[6] ^ (x & (s[5] ^ s[6]))) + K256[i] +        \
            w[i & 15];                                                                                              \
        u = (ROTATE(y, 2) ^ ROTATE(y, 13) ^ ROTATE(y, 22)) + ((y & s[1]) | (s[2] & (y | s[1])));                    \
        s[7] = s[6], s[6] = s[5], s[5] = x, s[4] = s[3] + t, s[3] = s[2], s[2] = s[1], s[1] = y, s[0] = t + u;      \
      }                                                                                                             \
      for (i = 0; i < 8; i++) h[i] += s[i];                                                                         \
    }                                                                                                               \
    for (j = 0; j < lanes; j++)                                                                                     \
      for (i = 0; i < 32; i++) out[j][i] = (uint8_t)(h[i / 4][j] >> (24 - 8 * (i % 4)));                            \
  }

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define NO_ATTRIBUTES
SHA_LANES(sha_four, 4, NO_ATTRIBUTES)
#if defined(__x86_64__)
SHA_LANES(sha_eight, 8, __attribute__((target("avx2"))))
SHA_LANES(sha_sixteen, 16, __attribute__((target("avx512f"))))
#endif
#endif

/* The digests of at most MOST_LANES whole pieces; how many were taken. */
static uint64_t sha_pieces(const uint8_t *data, uint64_t count, uint8_t (*out)[32]) {
  uint64_t i;
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#if defined(__x86_64__)
  if (!has_sha() && count >= 16 && __builtin_cpu_supports("avx512f")) return sha_sixteen(data, out), 16;
  if (!has_sha() && count >= 8 && __builtin_cpu_supports("avx2")) return sha_eight(data, out), 8;
  if (!has_sha() && count >= 4) return sha_four(data, out), 4;
#else
  if (!has_sha() && count >= 4) return sha_four(data, out), 4;
#endif
#endif
  for (i = 0; i < count && i < MOST_LANES; i++) sha256(data + i * PIECE, PIECE, out[i]);
  return i;
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
  const uint8_t *data; /* the file, mapped: what it holds may change as long as it is open */
  uint64_t size;
  uint8_t *head; /* header and table, copied: names and digests stay those that were verified */
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
  uint8_t head[HEADER];
  if (b->size < HEADER || memcmp(b->data, "TESSERAB", 8)) return fail(TESS_ERROR_FILE, "bundle: it is no bundle");
  memcpy(head, b->data, HEADER);
  if (u32_at(head + 8) != TESS_BUNDLE_VERSION)
    return fail(TESS_ERROR_FILE, "bundle: format version %u, expected %u", u32_at(head + 8), TESS_BUNDLE_VERSION);
  b->count = u32_at(head + 12);
  for (i = u32_at(head + 64) ? 168 : 68; i < HEADER; i++)
    if (head[i] || u32_at(head + 64) > 1 || u32_at(head + 68))
      return fail(TESS_ERROR_FILE, "bundle: bytes behind its signature, or without one; it was changed");
  if (u64_at(head + 16) != b->size)
    return fail(TESS_ERROR_FILE, "bundle: %llu bytes, its header states %llu; it is truncated or damaged",
                (unsigned long long)b->size, (unsigned long long)u64_at(head + 16));
  if (b->count > MOST_SECTIONS || u64_at(head + 24) != HEADER || HEADER + (uint64_t)b->count * ROW > b->size)
    return fail(TESS_ERROR_FILE, "bundle: the table of sections does not fit; it is damaged");
  b->sections = calloc(b->count + 1, sizeof *b->sections);
  b->head = malloc(HEADER + (size_t)b->count * ROW);
  if (!b->sections || !b->head) return fail(TESS_ERROR_MEMORY, "bundle: no memory for %u sections", b->count);
  memcpy(b->head, head, HEADER);
  memcpy(b->head + HEADER, b->data + HEADER, (size_t)b->count * ROW);
  end = page_up(HEADER + (uint64_t)b->count * ROW);
  for (i = 0; i < b->count; i++) {
    const uint8_t *p = b->head + HEADER + i * ROW;
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

/* Weights are verified by the digests of their pieces, where a section has these: in lanes, and by several threads. */
typedef struct {
  const uint8_t *data, *want;
  uint64_t first, end, size; /* pieces, bytes */
  int wrong;
} Pieces;

static void *check_pieces(void *given) {
  Pieces *p = given;
  uint8_t found[MOST_LANES][32];
  uint64_t i, whole = p->size / PIECE, taken;
  for (i = p->first; i < p->end; i += taken) {
    if (i < whole) {
      taken = sha_pieces(p->data + i * PIECE, (p->end < whole ? p->end : whole) - i, found);
    } else {
      sha256(p->data + i * PIECE, p->size - i * PIECE, found[0]), taken = 1;
    }
    if (memcmp(found, p->want + i * 32, taken * 32)) p->wrong = 1;
  }
  return NULL;
}

static uint32_t cores(void);

static int pieces_fit(const uint8_t *data, uint64_t size, const uint8_t *want) {
  enum { HELPERS = 7, WORTH = 64 };
  Pieces part[HELPERS + 1];
  pthread_t thread[HELPERS];
  uint64_t count = (size + PIECE - 1) / PIECE, parts = count / WORTH, i;
  int wrong = 0, started[HELPERS] = {0};
  if (parts > cores()) parts = cores();
  if (parts > HELPERS + 1) parts = HELPERS + 1;
  if (!parts) parts = 1;
  for (i = 0; i < parts; i++) {
    Pieces p = {data, want, 0, 0, size, 0};
    p.first = count * i / parts, p.end = count * (i + 1) / parts;
    part[i] = p;
    if (i) started[i - 1] = !pthread_create(&thread[i - 1], NULL, check_pieces, &part[i]);
  }
  check_pieces(&part[0]);
  for (i = 1; i < parts; i++) {
    if (started[i - 1]) pthread_join(thread[i - 1], NULL);
    else check_pieces(&part[i]);
  }
  for (i = 0; i < parts; i++) wrong |= part[i].wrong;
  return !wrong;
}

/* Where the digests of the pieces of the weights are, after their section was verified; null: there are none. */
static const uint8_t *pieces_of(const TessBundle *b, const Section *weights) {
  const Section *s = section(b, "pieces/weights");
  uint64_t count = (weights->size + PIECE - 1) / PIECE;
  if (!s || s->size != 16 + 32 * count || u32_at(s->data) != PIECE || u32_at(s->data + 4)) return NULL;
  return u64_at(s->data + 8) == weights->size ? s->data + 16 : NULL;
}

static tess_status_t check_digests(const TessBundle *b) {
  const uint8_t *pieces = NULL;
  uint8_t digest[32];
  uint32_t i;
  Sha c;
  sha_begin(&c);
  sha_add(&c, b->head, 32);
  sha_add(&c, b->head + HEADER, (uint64_t)b->count * ROW);
  sha_end(&c, digest);
  if (memcmp(digest, b->head + 32, 32))
    return fail(TESS_ERROR_DIGEST, "bundle: the digest of the header is wrong; it is damaged or was changed");
  for (i = 0; i < b->count; i++) {
    const Section *s = &b->sections[i];
    if (s->kind == KIND_WEIGHTS && b->flags & TESS_OPEN_TRUST_WEIGHTS) continue;
    if (s->kind == KIND_CODE) continue; /* the copy that runs is what is verified */
    if (s == b->weights && (pieces = pieces_of(b, s))) continue;
    sha256(s->data, s->size, digest);
    if (memcmp(digest, s->digest, 32))
      return fail(TESS_ERROR_DIGEST, "bundle: the digest of section '%s' is wrong; it is damaged or was changed", s->name);
  }
  if (pieces && !pieces_fit(b->weights->data, b->weights->size, pieces))
    return fail(TESS_ERROR_DIGEST, "bundle: the digest of section 'weights' is wrong; it is damaged or was changed");
  return TESS_OK;
}

static tess_status_t map_file(TessBundle *b, const char *path) {
  struct stat s;
  void *p;
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe is refused, and not waited for */
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

/* Copy a section, and verify the copy: what runs is what was verified, whatever becomes of the file. */
static tess_status_t copy_section(const TessBundle *b, const Section *s, uint8_t *to) {
  uint8_t digest[32];
  memcpy(to, s->data, s->size);
  if (b->flags & TESS_OPEN_UNVERIFIED) return TESS_OK;
  sha256(to, s->size, digest);
  if (memcmp(digest, s->digest, 32))
    return fail(TESS_ERROR_DIGEST, "bundle: the digest of section '%s' is wrong; it is damaged or was changed", s->name);
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
  memcpy(digest, b->head + 32, 32);
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
enum { CALL, COPY, WHILE, SCAN, BRANCH, REPEAT, TRAVERSE, ORDER, CHECK, STEPS };
enum { OP_CONSTANT, OP_SYMBOL, OP_ADD, OP_MULTIPLY, OP_QUOTIENT, OP_REST, OP_MAX, OP_MIN, OPCODES };
enum { DEEPEST = 64, MOST_TOGETHER = 16, IMPORTS = 5, MOST_NESTED = 16 };
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
  const uint8_t *shares; /* pairs of a parameter that is read and one that is written, which may be one memory */
  uint32_t share_count, copies; /* copies: it copies its first parameter, which is nothing to do in one place */
} Kernel;
typedef struct {
  uint64_t at; /* of a kernel, in the code */
  const uint8_t *pairs;
  uint32_t count, copies;
} Shares;
typedef struct {
  uint32_t kind, kernel, region[2], carry, xs, reverse, length, in_count, out_count;
  uint32_t *in, *out; /* of a call and a copy: all parameters in `in` */
  const uint8_t *reason; /* of a check */
  uint32_t reason_bytes;
} Step;

static int has_kernel(const Step *s) { return s->kind == CALL || s->kind == WHILE || s->kind == SCAN; }
static int is_control(uint32_t kind) { return kind == BRANCH || kind == REPEAT || kind == TRAVERSE; }

typedef struct Bound Bound;
typedef struct DeviceProgram DeviceProgram;
typedef void (*Function)(void *const *parameters, const int64_t *sizes, int64_t begin, int64_t end, void *scratch);

struct TessEntry {
  TessBundle *bundle;
  TessEntry *next;
  char name[40], target[40], numerics[32];
  uint32_t arch;
  uint8_t *plan; /* null of a region, which is a part of the plan around it */
  const uint8_t *at, *end; /* while the plan is read */
  uint32_t version; /* of the plan */
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
  uint8_t *shared; /* the section of what kernels share, as the plan: null of a region */
  Shares *shares; /* of a region: those of the program around it */
  uint32_t share_count;
  uint8_t *code;
  uint64_t code_bytes;
  Bound *bound;
  TessEntry **region; /* programs of branches and loops: entries without a name, whose code is this one's */
  uint32_t regions, depth;
  uint32_t *outer; /* of a region: the symbol of the program around it that each symbol is */
  DeviceProgram *device; /* of an entry point on a GPU, which has nothing of the above but names */
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

/* What each kernel shares, in the order of the code. */
static tess_status_t read_shares(TessEntry *e, const Section *s) {
  const uint8_t *at = e->at, *end = e->end;
  uint32_t i, version;
  e->shared = malloc(s->size + 1);
  if (!e->shared) return fail(TESS_ERROR_MEMORY, "bundle: no memory for its plan");
  TRY(copy_section(e->bundle, s, e->shared));
  e->at = e->shared, e->end = e->shared + s->size;
  if (!enough(e, 4) || memcmp(e->at, "TSSH", 4)) return damaged("what its kernels share is none");
  e->at += 4;
  TRY(take_u32(e, &version));
  if (version != 1) return fail(TESS_ERROR_FILE, "bundle: its shares have version %u, expected 1", version);
  TRY(take_count(e, 16, &e->share_count, (void **)&e->shares, sizeof *e->shares));
  for (i = 0; i < e->share_count; i++) {
    Shares *x = &e->shares[i];
    TRY(take_u64(e, &x->at));
    TRY(take_below(e, 2, &x->copies));
    TRY(take_u32(e, &x->count));
    if ((i && x->at <= x[-1].at) || !enough(e, (uint64_t)x->count * 8)) return damaged("what its kernels share is out of order");
    x->pairs = e->at, e->at += (size_t)x->count * 8;
  }
  if (e->at != e->end) return damaged("bytes follow what its kernels share");
  e->at = at, e->end = end;
  return TESS_OK;
}

static int order_of_shares(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = ((const Shares *)b)->at;
  return (x > y) - (x < y);
}

static tess_status_t find_shares(const TessEntry *e, Kernel *k) {
  const Shares *x = e->share_count ? bsearch(&k->at, e->shares, e->share_count, sizeof *x, order_of_shares) : NULL;
  uint32_t i;
  if (!x) return TESS_OK;
  k->shares = x->pairs, k->share_count = x->count, k->copies = x->copies;
  for (i = 0; i < x->count; i++) {
    uint32_t read = u32_at(x->pairs + 8 * (size_t)i), written = u32_at(x->pairs + 8 * (size_t)i + 4);
    if (read >= k->parameters || written >= k->parameters || k->writable[read] || !k->writable[written])
      return damaged("a kernel shares what it has not");
  }
  if (k->copies && (k->parameters != 2 || k->writable[0] || !k->writable[1])) return damaged("a kernel is no copy");
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
    TRY(find_shares(e, k));
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

/* An order along an axis: the sorted elements (1), their places (2), or both, as many as the results have room for. */
static tess_status_t read_order(TessEntry *e, Step *s) {
  const Buffer *x;
  uint32_t i;
  TRY(take_u32(e, &s->carry));            /* the axis */
  TRY(take_below(e, 2, &s->reverse));     /* the largest first */
  TRY(take_below(e, 4, &s->xs));          /* what it makes */
  s->in_count = 1, s->out_count = (s->xs & 1) + (s->xs >> 1);
  TRY(take_numbers(e, 1, e->buffers, &s->in));
  TRY(take_numbers(e, s->out_count, e->buffers, &s->out));
  x = &e->buffer[s->in[0]];
  if (!s->xs || s->carry >= x->rank || x->dtype == TESS_C64 || x->dtype == TESS_C128 || x->item > 8 ||
      x->item != ITEM[x->dtype])
    return damaged("an order is of what has none");
  for (i = 0; i < s->out_count; i++) {
    const Buffer *y = &e->buffer[s->out[i]];
    if (y->kind != TEMPORARY) return damaged("an order writes to what it may not");
    if (y->rank != x->rank || y->dtype != (i || s->xs == 2 ? (uint32_t)TESS_I64 : x->dtype) || y->item != ITEM[y->dtype])
      return damaged("an order makes another type");
  }
  return TESS_OK;
}

/* A bool that ends the program with a text where it is false. */
static tess_status_t read_check(TessEntry *e, Step *s) {
  const Buffer *x;
  s->in_count = 1;
  TRY(take_numbers(e, 1, e->buffers, &s->in));
  TRY(take_text(e, &s->reason, &s->reason_bytes));
  x = &e->buffer[s->in[0]];
  if (x->dtype != TESS_BOOL || x->item != 1 || x->rank) return damaged("a check is of no bool");
  return TESS_OK;
}

static tess_status_t read_steps(TessEntry *e) {
  uint32_t i;
  TRY(take_count(e, 12, &e->steps, (void **)&e->step, sizeof *e->step));
  for (i = 0; i < e->steps; i++) {
    Step *s = &e->step[i];
    TRY(take_below(e, e->version == 1 ? BRANCH : e->version == 2 ? ORDER : e->version == 3 ? CHECK : STEPS, &s->kind));
    if (s->kind == COPY) {
      s->in_count = 2;
      TRY(take_numbers(e, 2, e->buffers, &s->in));
      if (e->buffer[s->in[0]].kind != TEMPORARY) return damaged("a copy writes to what it may not");
      if (e->buffer[s->in[0]].item != e->buffer[s->in[1]].item || e->buffer[s->in[0]].rank != e->buffer[s->in[1]].rank)
        return damaged("a copy is of another type");
      continue;
    }
    if (s->kind == ORDER) {
      TRY(read_order(e, s));
      continue;
    }
    if (s->kind == CHECK) {
      TRY(read_check(e, s));
      continue;
    }
    if (has_kernel(s)) {
      TRY(take_below(e, e->kernels, &s->kernel));
    } else {
      TRY(take_u32(e, &s->region[0]));
      TRY(take_u32(e, &s->region[1]));
    }
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
    if (has_kernel(s)) TRY(check_loop(e, s));
  }
  return TESS_OK;
}

/* What a region takes or makes is what a step has: the same type, but for the first axis of rows. */
static int fits(const TessEntry *e, uint32_t buffer, const TessEntry *r, uint32_t own, uint32_t rows) {
  const Buffer *a = &e->buffer[buffer], *b = &r->buffer[own];
  return a->dtype == b->dtype && a->rank == b->rank + rows;
}

static tess_status_t check_region(const TessEntry *e, const Step *s, uint32_t which) {
  static const char *const wrong = "a branch or loop does not fit its region";
  const TessEntry *r;
  uint32_t i, first = s->kind == BRANCH, test = s->kind == REPEAT && !which, rows = s->kind == TRAVERSE ? s->xs : 0;
  if (s->region[which] >= e->regions) return damaged("a region is unknown");
  r = e->region[s->region[which]];
  if (r->inputs != s->in_count - first || r->outputs != (test ? 1 : s->out_count)) return damaged(wrong);
  for (i = 0; i < r->inputs; i++)
    if (!fits(e, s->in[first + i], r, r->input[i].buffer, i >= s->carry && i < s->carry + rows)) return damaged(wrong);
  if (test) {
    const Buffer *b = &r->buffer[r->output[0].buffer];
    return b->dtype == TESS_BOOL && !b->rank ? TESS_OK : damaged(wrong);
  }
  for (i = 0; i < r->outputs; i++)
    if (!fits(e, s->out[i], r, r->output[i].buffer, s->kind == TRAVERSE && i >= s->carry)) return damaged(wrong);
  return TESS_OK;
}

static tess_status_t check_control(const TessEntry *e, const Step *s) {
  uint32_t i;
  if (s->kind == BRANCH) {
    const Buffer *b = s->in_count ? &e->buffer[s->in[0]] : NULL;
    if (!b || b->dtype != TESS_BOOL || b->rank || s->carry || s->xs) return damaged("a branch has no condition");
  }
  if (s->carry > s->in_count || s->carry > s->out_count || s->xs > s->in_count - s->carry)
    return damaged("a loop has too few parameters");
  if (s->kind == REPEAT && (s->carry != s->out_count || s->xs)) return damaged("a loop has too few parameters");
  for (i = 0; i < s->out_count; i++)
    if (e->buffer[s->out[i]].kind != TEMPORARY) return damaged("a loop writes to what it may not");
  TRY(check_region(e, s, 0));
  return s->kind == TRAVERSE ? TESS_OK : check_region(e, s, 1);
}

static tess_status_t read_program(TessEntry *e);

/* The symbol of the program around a region that has the name of one of the region's. */
static tess_status_t find_symbols(const TessEntry *e, TessEntry *r) {
  uint32_t i, j;
  r->outer = calloc((size_t)r->symbols + 1, sizeof *r->outer);
  if (!r->outer) return fail(TESS_ERROR_MEMORY, "bundle: no memory for its plan");
  for (i = 0; i < r->symbols; i++) {
    uint32_t n = u32_at(r->symbol_names[i]);
    for (j = 0; j < e->symbols; j++)
      if (u32_at(e->symbol_names[j]) == n && !memcmp(e->symbol_names[j] + 4, r->symbol_names[i] + 4, n)) break;
    if (j == e->symbols && i != r->scan_symbol) return damaged("a region has a size that is not told");
    r->outer[i] = j;
  }
  return TESS_OK;
}

static tess_status_t read_regions(TessEntry *e) {
  uint32_t i, bytes;
  const uint8_t *text;
  TRY(take_count(e, 12, &e->regions, (void **)&e->region, sizeof *e->region));
  if (e->regions && e->depth == MOST_NESTED) return damaged("it is nested too deep");
  for (i = 0; i < e->regions; i++) {
    TessEntry *r = e->region[i] = calloc(1, sizeof *r);
    if (!r) return fail(TESS_ERROR_MEMORY, "bundle: no memory for its plan");
    pthread_mutex_init(&r->lock, NULL);
    TRY(take_text(e, &text, &bytes));
    r->bundle = e->bundle, r->code = e->code, r->code_bytes = e->code_bytes, r->depth = e->depth + 1;
    r->shares = e->shares, r->share_count = e->share_count;
    memcpy(r->name, e->name, sizeof r->name);
    r->at = text, r->end = text + bytes;
    TRY(read_program(r));
    TRY(take_u32(r, &bytes));
    if (bytes || r->bindings || r->guards || r->at != r->end) return damaged("bytes follow the end of a region");
    TRY(find_symbols(e, r));
  }
  for (i = 0; i < e->steps; i++)
    if (is_control(e->step[i].kind)) TRY(check_control(e, &e->step[i]));
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

static tess_status_t map_code(TessEntry *e, const Section *s) {
  uint64_t whole = page_up(s->size ? s->size : 1);
  void *p = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return fail(TESS_ERROR_MEMORY, "bundle: no memory for %llu bytes of code", (unsigned long long)whole);
  e->code = p;
  return copy_section(e->bundle, s, e->code);
}

/* Fill in what the code imports, and make it executable and not writable. */
static tess_status_t load_code(TessEntry *e, const Section *s) {
  uint32_t count, i;
  char name[32];
  uint64_t at, address, whole = page_up(s->size ? s->size : 1);
  void *p = e->code;
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

/* A plan but for its imports: that of a whole program, or of a region. */
static tess_status_t read_program(TessEntry *e) {
  uint32_t i, named;
  if (!enough(e, 8) || memcmp(e->at, "TSPL", 4)) return damaged("it is none");
  e->at += 4;
  TRY(take_u32(e, &e->version));
  if (e->version < 1 || e->version > 4)
    return fail(TESS_ERROR_FILE, "bundle: its plan has version %u, expected 1 to 4", e->version);
  TRY(take_name(e, e->numerics, sizeof e->numerics));
  TRY(read_sizes(e));
  TRY(read_buffers(e));
  TRY(read_values(e, &e->inputs, &e->input));
  TRY(read_values(e, &e->outputs, &e->output));
  for (i = 0; i < e->inputs; i++)
    if (e->buffer[e->input[i].buffer].kind != INPUT || (i && e->input[i].buffer <= e->input[i - 1].buffer))
      return damaged("an input is none");
  for (i = named = 0; i < e->buffers; i++) named += e->buffer[i].kind == INPUT;
  if (named != e->inputs) return damaged("an input has no name");
  for (i = 0; i < e->bindings; i++)
    if (e->binding[i].input >= e->inputs ||
        e->binding[i].axis >= e->buffer[e->input[e->binding[i].input].buffer].rank)
      return damaged("a size follows from no input");
  TRY(read_kernels(e));
  TRY(read_steps(e));
  return e->version == 1 ? TESS_OK : read_regions(e);
}

static tess_status_t read_plan(TessEntry *e, const Section *plan, const Section *code, const Section *shares) {
  e->plan = malloc(plan->size + 1); /* sizes and names are read from it at every run */
  if (!e->plan) return fail(TESS_ERROR_MEMORY, "bundle: no memory for its plan");
  TRY(copy_section(e->bundle, plan, e->plan));
  e->at = e->plan, e->end = e->plan + plan->size, e->code_bytes = code->size;
  if (shares) TRY(read_shares(e, shares));
  TRY(map_code(e, code));
  TRY(read_program(e));
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
  if (!strcmp(name, "cuda")) return !tess_device_count(TESS_DEVICE_CUDA, archs) && archs[0];
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
  snprintf(key, sizeof key, "shares/%.64s/%s", name, names[i - 1]);
  status = read_plan(e, plan, code, section(b, key));
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
/* A size that is a number at every call; 0 on success. */
static int fixed_size(const Size *s, int64_t *out) {
  uint32_t k;
  for (k = 0; k < s->length; k++)
    if (u32_at(s->code + (size_t)k * 12) == OP_SYMBOL) return 1;
  return size_value(s, NULL, out);
}

static int natural(const Size *s, const int64_t *symbols, uint64_t *out) {
  int64_t n;
  if (size_value(s, symbols, &n) || n < 0) return 1;
  *out = (uint64_t)n;
  return 0;
}

static const char *dtype_name(uint32_t code) {
  static const char *const names[sizeof ITEM] = {
      "nothing", "bool", "i4", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f8e4m3", "f8e5m2", "f16", "bf16",
      "f32", "f64", "c64", "c128", "tf32"};
  return code < sizeof ITEM ? names[code] : "an unknown dtype";
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
  if (t->device && (t->device < TESS_DEVICE_CUDA || t->device >= TESS_DEVICE_CUDA + TESS_MAX_DEVICES))
    return fail(TESS_ERROR_ARGUMENT, "tensor: device %u is unknown", t->device);
  if (t->flags & ~TESS_TENSOR_OWNED) return fail(TESS_ERROR_ARGUMENT, "tensor: flags %#x are unknown", t->flags);
  for (i = 0; i < t->rank; i++)
    if (t->shape[i] < 0 || __builtin_mul_overflow(total, t->shape[i] ? (uint64_t)t->shape[i] : 1, &total))
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
    tess_memory_free(t->device, t->data);
    t->data = NULL, t->flags &= ~TESS_TENSOR_OWNED;
  }
}

static tess_status_t check_operator(const TessOperatorDesc *o);

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
  return check_operator(o);
}

/* Memory -------------------------------------------------------------------------------------------------------- */

enum { LINE = 64, CHUNKS = 8 };
static const uint64_t QUANTUM = 10000000; /* picoseconds of work that are worth waking a thread */
static const uint64_t MOST_BYTES = (uint64_t)1 << 48, MOST_INSTANCES = (uint64_t)1 << 48;

typedef struct {
  uint32_t slot; /* 0: the arena; then inputs, outputs, the weights; what runs make; last what is made once */
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
  uint8_t **bases; /* of each slot */
} Run;

struct Bound {
  Bound *next;
  uint32_t threads;
  int64_t *symbol;
  int64_t (*shape)[TESS_MAX_RANK], (*stride)[TESS_MAX_RANK];
  uint64_t *bytes;
  Place *place;
  int32_t *direct; /* which output a buffer is */
  int32_t *alias; /* of a loop's body: which carry an output lies in the memory of, -1 of none */
  uint8_t *spoilt; /* inputs that are written over */
  uint8_t *held; /* whether an output is in its place when the last step has run */
  uint8_t *early; /* steps that read weights and constants alone: they run once */
  uint8_t *known; /* buffers that these make */
  uint8_t *kept; /* the memory of those that other steps read */
  uint64_t kept_bytes, brief_bytes; /* brief: of those that only early steps read */
  Job *job;
  int64_t *numbers; /* of jobs */
  Action *action;
  uint32_t jobs, actions, first_late, addresses, regions;
  int settled; /* whether the early steps have run */
  uint64_t arena, scratch, extra, inner; /* inner: what the regions of a step need at most */
  Bound **region;
  Run *idle;
};

static void free_bound(Bound *b) {
  Run *r, *next;
  if (!b) return;
  for (r = b->idle; r; r = next) {
    next = r->next;
    free(r);
  }
  while (b->regions) free_bound(b->region[--b->regions]);
  free(b->region), free(b->symbol), free(b->shape), free(b->stride), free(b->bytes), free(b->place), free(b->direct), free(b->job);
  free(b->numbers), free(b->action), free(b->alias), free(b->spoilt), free(b->held), free(b->early), free(b->known), free(b->kept), free(b);
}

static void free_device_program(TessEntry *e);

static void free_entry(TessEntry *e) {
  Bound *b, *next;
  uint32_t i;
  if (e->device) free_device_program(e);
  for (b = e->bound; b; b = next) {
    next = b->next;
    free_bound(b);
  }
  for (i = 0; i < e->blocks; i++) free(e->held[i]);
  free(e->symbol_names), free(e->size), free(e->binding), free(e->guard), free(e->buffer), free(e->input);
  free(e->output), free(e->kernel), free(e->step);
  for (i = 0; e->region && i < e->regions; i++)
    if (e->region[i]) free_entry(e->region[i]);
  free(e->region), free(e->outer), free(e->plan);
  if (!e->depth) free(e->shares), free(e->shared);
  if (e->code && !e->depth) munmap(e->code, page_up(e->code_bytes ? e->code_bytes : 1));
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
  free(b->sections), free(b->head);
  pthread_mutex_destroy(&b->lock);
  free(b);
}

static tess_status_t too_large(const TessEntry *e) { return fail(TESS_ERROR_SHAPE, "%s: a size is out of range", e->name); }

static uint64_t line_up(uint64_t n) { return (n + LINE - 1) / LINE * LINE; }

/* The results of an order have the shape of what is sorted, but for fewer elements along the axis. */
static tess_status_t bind_order(const TessEntry *e, Bound *b, const Step *s) {
  const int64_t *x = b->shape[s->in[0]];
  uint32_t i, j;
  for (i = 0; i < s->out_count; i++) {
    const int64_t *y = b->shape[s->out[i]];
    for (j = 0; j < e->buffer[s->in[0]].rank; j++)
      if (j == s->carry ? y[j] > x[j] || y[j] != b->shape[s->out[0]][j] : y[j] != x[j])
        return damaged("an order does not fit its results");
  }
  if (x[s->carry] > (int64_t)1 << 35) return too_large(e);
  if (b->scratch < 32 * (uint64_t)x[s->carry]) b->scratch = 32 * (uint64_t)x[s->carry];
  return TESS_OK;
}

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
  for (i = 0; i < e->steps; i++)
    if (e->step[i].kind == ORDER) TRY(bind_order(e, b, &e->step[i]));
  return TESS_OK;
}

/* Slots of memory that is not an input's, an output's or the arena. */
static uint32_t weights_slot(const TessEntry *e) { return 1 + e->inputs + e->outputs; }
static uint32_t kept_slot(const TessEntry *e) { return 2 + e->inputs + 2 * e->outputs; }
static uint32_t brief_slot(const TessEntry *e) { return 3 + e->inputs + 2 * e->outputs; }

/* Buffers that a step reads or writes, one after another: whether there is a k-th, and whether it is written. */
static int touched(const TessEntry *e, const Step *s, uint32_t k, uint32_t *buffer, int *written) {
  uint32_t n = s->in_count;
  if (k >= n + s->out_count) return 0;
  *buffer = k < n ? s->in[k] : s->out[k - n];
  *written = k >= n || (s->kind == CALL && e->kernel[s->kernel].writable[k]) || (s->kind == COPY && !k);
  return 1;
}

static int is_static(const TessEntry *e, const Buffer *f) {
  int64_t n;
  uint32_t j;
  for (j = 0; j < f->rank; j++)
    if (fixed_size(&e->size[f->shape[j]], &n)) return 0;
  return 1;
}

/* Whether a step reads what is known alone, and makes no result and not much more than it reads. */
static int is_early(const TessEntry *e, const Bound *b, const Step *s, const uint32_t *writers) {
  uint64_t read = 0, made = 0, most;
  uint32_t k, buffer;
  int written;
  if (s->kind != CALL && s->kind != COPY && s->kind != ORDER) return 0;
  for (k = 0; touched(e, s, k, &buffer, &written); k++) {
    uint32_t base = e->buffer[buffer].base;
    if (!is_static(e, &e->buffer[buffer])) return 0;
    if (!written && !b->known[base]) return 0;
    if (written && writers[base] != 1) return 0;
    *(written ? &made : &read) += b->bytes[buffer];
  }
  most = read > UINT64_MAX / 4 ? UINT64_MAX : 4 * read;
  return made <= (most > 1 << 16 ? most : 1 << 16);
}

/* Find what follows from weights and constants, and lay it out in memory of its own. */
static tess_status_t find_early(const TessEntry *e, Bound *b) {
  uint32_t *writers = calloc(e->buffers + 1, sizeof *writers), i, k, buffer;
  int written;
  if (!writers) return fail(TESS_ERROR_MEMORY, "%s: no memory to plan", e->name);
  for (i = 0; i < e->buffers; i++) b->known[i] = e->buffer[i].kind == DATA;
  for (i = 0; i < e->steps; i++)
    for (k = 0; touched(e, &e->step[i], k, &buffer, &written); k++)
      if (written) writers[e->buffer[buffer].base]++;
  for (i = 0; i < e->outputs; i++) writers[e->buffer[e->output[i].buffer].base] = UINT32_MAX;
  for (i = 0; i < e->steps; i++) {
    if (!is_early(e, b, &e->step[i], writers)) continue;
    b->early[i] = 1;
    for (k = 0; touched(e, &e->step[i], k, &buffer, &written); k++)
      if (written) b->known[buffer] = 1;
  }
  memset(writers, 0, e->buffers * sizeof *writers); /* from here on: whether a late step reads it */
  for (i = 0; i < e->steps; i++)
    for (k = 0; !b->early[i] && touched(e, &e->step[i], k, &buffer, &written); k++) writers[e->buffer[buffer].base] = 1;
  for (i = 0; i < e->buffers; i++) {
    uint64_t *end = writers[i] ? &b->kept_bytes : &b->brief_bytes;
    if (!b->known[i] || e->buffer[i].kind != TEMPORARY) continue;
    b->place[i].slot = writers[i] ? kept_slot(e) : brief_slot(e), b->place[i].offset = *end;
    *end += line_up(b->bytes[i]);
  }
  free(writers);
  return TESS_OK;
}

/* A piece of memory, under the number of the buffer that is the first to lie in it. */
typedef struct {
  uint32_t first, last; /* steps of a buffer */
  uint32_t home, end;   /* the piece that a buffer lies in; of a piece: the last step of all in it */
} Life;

static void touch(const TessEntry *e, Life *lives, uint32_t buffer, uint32_t step) {
  Life *l = &lives[e->buffer[buffer].base];
  if (l->first == UINT32_MAX) l->first = step;
  l->last = step;
}

static uint32_t input_of(const TessEntry *e, uint32_t buffer) {
  uint32_t j = 0;
  while (e->input[j].buffer != buffer) j++;
  return j;
}

/* Whether a step may write buffer w over x, which nothing reads any more. */
static int may_replace(const TessEntry *e, const Bound *b, const Life *lives, uint32_t step, uint32_t x, uint32_t w,
                       uint32_t donated) {
  const Step *s = &e->step[step];
  uint32_t root = e->buffer[x].base, home = lives[root].home, i, seen = 0;
  const Buffer *h = &e->buffer[home];
  if (x != root && b->place[x].offset) return 0;
  if (b->known[root] || lives[home].end != step) return 0;
  if (h->kind == INPUT ? input_of(e, home) >= donated : h->kind != TEMPORARY) return 0;
  for (i = 0; i < s->in_count; i++)
    seen += !e->kernel[s->kernel].writable[i] && lives[e->buffer[s->in[i]].base].home == home;
  return seen == 1 && b->bytes[home] == b->bytes[w] && b->bytes[x] == b->bytes[w] && e->buffer[x].dtype == e->buffer[w].dtype;
}

/* Let results of kernels take the place of operands that nothing reads any more. */
static void share_places(const TessEntry *e, Bound *b, Life *lives, uint32_t donated) {
  uint32_t i, j, taken;
  for (i = 0; i < e->steps; i++) {
    const Step *s = &e->step[i];
    const Kernel *k = s->kind == CALL && !b->early[i] ? &e->kernel[s->kernel] : NULL;
    for (j = 0; k && j < k->share_count; j++) {
      uint32_t x = s->in[u32_at(k->shares + 8 * (size_t)j)], w = s->in[u32_at(k->shares + 8 * (size_t)j + 4)], home;
      if (lives[w].first != i || lives[w].home != w || b->known[w]) continue;
      if (!may_replace(e, b, lives, i, x, w, donated)) continue;
      home = lives[e->buffer[x].base].home;
      for (taken = 0; taken < s->in_count; taken++) /* another result of this step lies there */
        if (k->writable[taken] && s->in[taken] != w && lives[s->in[taken]].home == home) break;
      if (taken < s->in_count) continue;
      lives[w].home = home, lives[home].end = lives[w].last;
      if (b->direct[w] >= 0) b->direct[home] = b->direct[w];
      if (e->buffer[home].kind == INPUT) b->spoilt[input_of(e, home)] = 1;
    }
  }
}

/* When each buffer is used, and which are results: a view of all of a result is as good as it. */
static void measure_lives(const TessEntry *e, Bound *b, Life *lives) {
  uint32_t i, k, buffer;
  int written;
  for (i = 0; i < e->buffers; i++) lives[i].home = i, lives[i].first = UINT32_MAX, lives[i].last = 0, b->direct[i] = -1;
  for (i = 0; i < e->steps; i++)
    for (k = 0; touched(e, &e->step[i], k, &buffer, &written); k++) touch(e, lives, buffer, i);
  for (i = 0; i < e->outputs; i++) {
    uint32_t o = e->output[i].buffer, base = e->buffer[o].base;
    const Buffer *f = &e->buffer[o];
    int whole = o == base || (!b->place[o].offset && b->bytes[o] == b->bytes[base] &&
                              is_row_major(b->shape[o], b->stride[o], f->rank, f->item));
    if (e->buffer[base].kind == TEMPORARY && !b->known[base] && b->direct[base] < 0 && whole)
      b->direct[base] = (int32_t)i, b->held[i] = 1;
    touch(e, lives, o, e->steps);
  }
  for (i = 0; i < e->buffers; i++) lives[i].end = lives[i].last;
}

/* Which results lie in the memory of inputs: in that of a carry if they are carried, too; others are copied. */
static void find_aliases(const TessEntry *e, Bound *b, const Life *lives, uint32_t donated) {
  uint32_t i, j, k;
  for (i = 0; i < e->outputs; i++) {
    uint32_t o = e->output[i].buffer, home = lives[e->buffer[o].base].home;
    b->alias[i] = -1;
    if (e->buffer[home].kind != INPUT) continue;
    j = input_of(e, home);
    for (k = 0; k < i && b->alias[k] != (int32_t)j; k++) {}
    if (i >= donated || j >= donated || k < i || (!b->held[i] && o != home)) {
      b->held[i] = 0;
      continue;
    }
    b->alias[i] = (int32_t)j, b->held[i] = b->spoilt[j] = 1;
  }
}

/* Lay out the arena: each piece at the lowest place that is free while it lives. */
static void place_pieces(const TessEntry *e, Bound *b, const Life *lives, uint32_t *placed) {
  uint32_t i, j, k, n = 0;
  for (i = 0; i < e->buffers; i++) {
    Place *p = &b->place[i];
    uint64_t at = 0;
    int moved = 1;
    const Buffer *f = &e->buffer[i];
    if (f->kind == INPUT) p->slot = 1 + input_of(e, i);
    if (f->kind == DATA) p->slot = weights_slot(e), p->offset = f->at;
    if (f->kind != TEMPORARY || b->known[i] || lives[i].home != i) continue;
    if (b->direct[i] >= 0) {
      p->slot = 1 + e->inputs + (uint32_t)b->direct[i];
      continue;
    }
    while (moved)
      for (moved = 0, k = 0; k < n; k++) {
        j = placed[k];
        if (lives[j].end < lives[i].first || lives[i].end < lives[j].first) continue;
        if (at < b->place[j].offset + b->bytes[j] && b->place[j].offset < at + b->bytes[i])
          at = line_up(b->place[j].offset + b->bytes[j]), moved = 1;
      }
    p->offset = at, placed[n++] = i;
    if (at + b->bytes[i] > b->arena) b->arena = at + b->bytes[i];
  }
  for (i = 0; i < e->buffers; i++)
    if (e->buffer[i].kind == TEMPORARY) b->place[i] = b->place[lives[i].home];
  for (i = 0; i < e->buffers; i++)
    if (e->buffer[i].kind == VIEW) {
      const Place *base = &b->place[e->buffer[i].base];
      b->place[i].slot = base->slot, b->place[i].offset += base->offset;
    }
  b->arena = line_up(b->arena);
}

/* Where everything lies; what the first inputs hold, so many as are donated, may be written over. */
static tess_status_t lay_out(const TessEntry *e, Bound *b, uint32_t donated) {
  Life *lives = malloc((e->buffers + 1) * sizeof *lives);
  uint32_t *placed = malloc((e->buffers + 1) * sizeof *placed);
  tess_status_t status = TESS_OK;
  if (!lives || !placed) status = fail(TESS_ERROR_MEMORY, "%s: no memory to plan", e->name);
  else status = find_early(e, b);
  if (!status) {
    measure_lives(e, b, lives);
    share_places(e, b, lives, donated);
    find_aliases(e, b, lives, donated);
    place_pieces(e, b, lives, placed);
  }
  free(lives), free(placed);
  return status;
}

/* Jobs and phases ----------------------------------------------------------------------------------------------- */

/* Cut the instances of a job, each so many picoseconds of work, for threads. */
static void spread(Job *job, uint64_t count, uint64_t work, uint32_t threads) {
  uint64_t grain = work ? (QUANTUM + work - 1) / work : 1, most = (count + grain - 1) / grain, used;
  used = most < threads ? most : threads;
  if (!used) used = 1;
  job->chunk = (int64_t)((count + used * CHUNKS - 1) / (used * CHUNKS));
  if (job->chunk < (int64_t)grain) job->chunk = (int64_t)grain;
  job->count = (int64_t)count, job->seats = (uint32_t)used - 1;
  job->worth = (double)count / (double)grain;
}

static tess_status_t make_job(const TessEntry *e, Bound *b, uint32_t kernel, uint32_t threads, int64_t *numbers, Job *job) {
  const Kernel *k = &e->kernel[kernel];
  uint64_t count, scratch, work;
  const uint8_t *at = e->code + k->at;
  uint32_t i;
  if (natural(&e->size[k->count], b->symbol, &count) || natural(&e->size[k->scratch], b->symbol, &scratch) ||
      natural(&e->size[k->work], b->symbol, &work) || scratch > (uint64_t)1 << 40 ||
      count > MOST_INSTANCES || work > MOST_INSTANCES)
    return too_large(e);
  memcpy(&job->function, &at, sizeof at);
  for (i = 0; i < k->size_count; i++) numbers[i] = b->symbol[k->sizes[i]];
  job->sizes = numbers;
  spread(job, count, work, threads);
  if (scratch > b->scratch) b->scratch = scratch;
  return TESS_OK;
}

static void order_lines(void *const *parameters, const int64_t *sizes, int64_t begin, int64_t end, void *scratch);

/* An order is a job as well, whose instances are the lines along its axis; a merge takes about 4 ns an element. */
static void make_order(const TessEntry *e, const Bound *b, const Step *s, uint32_t threads, Job *job) {
  uint64_t n = (uint64_t)b->shape[s->in[0]][s->carry], lines = 0, depth = 1;
  while (depth < 40 && n >> depth) depth++;
  if (n && b->shape[s->out[0]][s->carry]) lines = b->bytes[s->in[0]] / e->buffer[s->in[0]].item / n;
  job->function = order_lines, job->sizes = NULL;
  spread(job, lines, n * depth * 4000, threads);
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

/* Whether a call copies what lies in its place already. */
static int is_done(const TessEntry *e, const Bound *b, const Step *s) {
  const Place *x, *y;
  if (s->kind != CALL || !e->kernel[s->kernel].copies) return 0;
  x = &b->place[s->in[0]], y = &b->place[s->in[1]];
  return x->slot == y->slot && x->offset == y->offset;
}

static tess_status_t make_actions(const TessEntry *e, Bound *b, uint32_t threads) {
  uint32_t i, j, numbers = 0, t;
  for (i = 0; i < e->steps; i++)
    if (has_kernel(&e->step[i])) numbers += e->kernel[e->step[i].kernel].size_count;
  b->job = calloc(e->steps + 1, sizeof *b->job);
  b->action = calloc(e->steps + 1, sizeof *b->action);
  b->numbers = calloc((size_t)numbers + 1, sizeof *b->numbers);
  if (!b->job || !b->action || !b->numbers) return fail(TESS_ERROR_MEMORY, "%s: no memory to plan", e->name);
  numbers = 0;
  for (t = 0; t < 2 * e->steps; t++) { /* the early ones first */
    const Step *s = &e->step[i = t % e->steps];
    Job *job = &b->job[b->jobs];
    Action *a = b->actions ? &b->action[b->actions - 1] : NULL;
    int joins;
    if (t == e->steps) b->first_late = b->actions, a = NULL;
    if (b->early[i] != (t < e->steps) || is_done(e, b, s)) continue;
    if (b->actions == b->first_late && t >= e->steps) a = NULL;
    joins = a && a->kind == CALL && s->kind == CALL && a->count < MOST_TOGETHER;
    if (has_kernel(s)) {
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
    } else if (s->kind == ORDER) {
      make_order(e, b, s, threads, job);
      job->buffers = s->in, job->parameters = 1, job->first = b->addresses;
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
    if (has_kernel(s) || s->kind == ORDER) b->jobs++, a->count++, b->addresses += job->parameters;
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
    if (s->kind < WHILE || s->kind == BRANCH || s->kind == ORDER || s->kind == CHECK) continue;
    for (j = 0; j < s->carry; j++) {
      need += line_up(b->bytes[s->out[j]]);
      if (b->bytes[s->out[j]] != b->bytes[s->in[j]]) return damaged("a loop carries another size");
    }
    if (need > b->extra) b->extra = need;
  }
  return TESS_OK;
}

static tess_status_t make_bound(const TessEntry *e, const int64_t *symbols, uint32_t threads, uint32_t donated, Bound **out);

/* How many of the first inputs of a region every step that runs it gives away: what a loop carries is its own. */
static uint32_t donated_to(const TessEntry *e, uint32_t region) {
  uint32_t i, out = UINT32_MAX;
  for (i = 0; i < e->steps; i++) {
    const Step *s = &e->step[i];
    int is_body = s->kind == TRAVERSE || (s->kind == REPEAT && s->region[1] == region && s->region[0] != region);
    if (!is_control(s->kind) || (s->region[0] != region && (s->kind == TRAVERSE || s->region[1] != region))) continue;
    if (!is_body || s->carry < out) out = is_body ? s->carry : 0;
  }
  return out == UINT32_MAX ? 0 : out;
}

/* Whether a step has tensors of the sizes that a region takes and makes; those of rows are so many rows. */
static int fits_bound(const TessEntry *e, const Bound *b, const Step *s, uint32_t which, int64_t length) {
  const TessEntry *r = e->region[s->region[which]];
  const Bound *c = b->region[s->region[which]];
  uint32_t i, first = s->kind == BRANCH;
  for (i = 0; i < r->inputs; i++) {
    int row = s->kind == TRAVERSE && i >= s->carry && i < s->carry + s->xs;
    const int64_t *shape = b->shape[s->in[first + i]], *own = c->shape[r->input[i].buffer];
    if (row && shape[0] != length) return 0;
    if (memcmp(shape + row, own, r->buffer[r->input[i].buffer].rank * sizeof *own)) return 0;
  }
  for (i = 0; i < r->outputs && !(s->kind == REPEAT && !which); i++) {
    int row = s->kind == TRAVERSE && i >= s->carry;
    const int64_t *shape = b->shape[s->out[i]], *own = c->shape[r->output[i].buffer];
    if (row && shape[0] != length) return 0;
    if (memcmp(shape + row, own, r->buffer[r->output[i].buffer].rank * sizeof *own)) return 0;
  }
  return 1;
}

/* The programs of regions at these sizes. */
static tess_status_t bind_regions(const TessEntry *e, Bound *b) {
  uint32_t i, j;
  if (!e->regions) return TESS_OK;
  b->region = calloc(e->regions, sizeof *b->region);
  if (!b->region) return fail(TESS_ERROR_MEMORY, "%s: no memory to plan", e->name);
  for (i = 0; i < e->regions; i++) {
    const TessEntry *r = e->region[i];
    int64_t *symbols = calloc((size_t)r->symbols + 1, sizeof *symbols);
    uint64_t need;
    tess_status_t status;
    if (!symbols) return fail(TESS_ERROR_MEMORY, "%s: no memory to plan", e->name);
    for (j = 0; j < r->symbols; j++) symbols[j] = r->outer[j] < e->symbols ? b->symbol[r->outer[j]] : 0;
    status = make_bound(r, symbols, b->threads, donated_to(e, i), &b->region[i]);
    free(symbols);
    TRY(status);
    b->regions = i + 1;
    need = b->region[i]->kept_bytes + b->region[i]->arena + b->region[i]->extra + line_up(b->region[i]->scratch) * b->threads + b->region[i]->inner;
    if (need > b->inner) b->inner = need;
  }
  for (i = 0; i < e->steps; i++) {
    const Step *s = &e->step[i];
    int64_t length = 0;
    if (!is_control(s->kind)) continue;
    if (s->kind == TRAVERSE && (size_value(&e->size[s->length], b->symbol, &length) || length < 0)) return too_large(e);
    if (!fits_bound(e, b, s, 0, length) || (s->kind != TRAVERSE && !fits_bound(e, b, s, 1, length)))
      return damaged("a branch or loop has other sizes than its region");
  }
  return TESS_OK;
}

static tess_status_t make_bound(const TessEntry *e, const int64_t *symbols, uint32_t threads, uint32_t donated,
                                Bound **out) {
  Bound *b = calloc(1, sizeof *b);
  size_t n = e->buffers + 1;
  tess_status_t status;
  if (!b) return fail(TESS_ERROR_MEMORY, "%s: no memory to plan", e->name);
  b->threads = threads;
  b->symbol = malloc((e->symbols + 1) * sizeof *b->symbol);
  b->shape = calloc(n, sizeof *b->shape), b->stride = calloc(n, sizeof *b->stride);
  b->bytes = calloc(n, sizeof *b->bytes), b->place = calloc(n, sizeof *b->place), b->direct = calloc(n, sizeof *b->direct);
  b->alias = calloc(e->outputs + 1, sizeof *b->alias), b->held = calloc(e->outputs + 1, 1);
  b->early = calloc(e->steps + 1, 1), b->known = calloc(n, 1), b->spoilt = calloc(e->inputs + 1, 1);
  if (!b->symbol || !b->shape || !b->stride || !b->bytes || !b->place || !b->direct || !b->alias || !b->held || !b->early ||
      !b->known || !b->spoilt)
    status = fail(TESS_ERROR_MEMORY, "%s: no memory to plan", e->name);
  else {
    memcpy(b->symbol, symbols, e->symbols * sizeof *symbols);
    status = bind_shapes(e, b);
    if (!status) status = lay_out(e, b, donated);
    if (!status) status = make_actions(e, b, threads);
    if (!status) status = loop_memory(e, b);
    if (!status) status = bind_regions(e, b);
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

/* The state of a phase is one word, so that a worker that is awake takes a seat without the lock:
 * its number in the upper half, seats that are free and workers that are busy below. */
#define SEAT ((uint64_t)1 << 16)
#define BUSY(state) ((uint32_t)((state)&0xffff))
#define FREE(state) ((uint32_t)((state) >> 16 & 0xffff))
#define PHASE(state) ((uint32_t)((state) >> 32))

static struct {
  pthread_mutex_t lock, launch;
  pthread_cond_t wake, done;
  uint32_t started, sleeping, waiting;
  uint64_t state;
  Work work; /* written before its phase begins, kept until the last worker has left it */
} pool = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, PTHREAD_COND_INITIALIZER,
          0, 0, 0, (uint64_t)1 << 32, {NULL, NULL, NULL}};
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

/* Numerics, from what promises least to what promises most. */
static const char *const promises[] = {"fast", "deterministic", "strict"};
static int wanted_promise;

static int promise_of(const char *mode) {
  int i;
  for (i = 0; i < 3; i++)
    if (mode && !strcmp(mode, promises[i])) return i;
  return -1; /* also what old plans for devices do not say */
}

const char *tess_numerics(void) { return promises[__atomic_load_n(&wanted_promise, __ATOMIC_RELAXED)]; }

tess_status_t tess_set_numerics(const char *mode) {
  int i = promise_of(mode);
  if (i < 0)
    return fail(TESS_ERROR_ARGUMENT, "tess_set_numerics: '%.40s', expected fast, deterministic or strict", mode ? mode : "");
  __atomic_store_n(&wanted_promise, i, __ATOMIC_RELAXED);
  return TESS_OK;
}

/* Whether what has these numerics may run. */
static tess_status_t allow(const char *what, const char *numerics) {
  int wanted = __atomic_load_n(&wanted_promise, __ATOMIC_RELAXED);
  if (!wanted || promise_of(numerics) >= wanted) return TESS_OK;
  return fail(TESS_ERROR_NUMERICS,
              "%s: it has numerics '%s', but tess_set_numerics asks for '%s'; build the bundle under "
              "ts.numerics(\"%s\"), or ask for less",
              what, *numerics ? numerics : "unknown", promises[wanted], promises[wanted]);
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

/* Wait for a phase that was not seen yet: awake for a while, then asleep. */
static uint64_t next_phase(uint32_t seen) {
  uint32_t i;
  uint64_t state = __atomic_load_n(&pool.state, __ATOMIC_ACQUIRE);
  for (i = 0; i < 2000 && PHASE(state) == seen; i++) {
    pause_a_little();
    state = __atomic_load_n(&pool.state, __ATOMIC_ACQUIRE);
  }
  if (PHASE(state) != seen) return state;
  pthread_mutex_lock(&pool.lock);
  __atomic_add_fetch(&pool.sleeping, 1, __ATOMIC_SEQ_CST); /* said before the state is looked at again */
  while (PHASE(state = __atomic_load_n(&pool.state, __ATOMIC_SEQ_CST)) == seen) pthread_cond_wait(&pool.wake, &pool.lock);
  __atomic_sub_fetch(&pool.sleeping, 1, __ATOMIC_SEQ_CST);
  pthread_mutex_unlock(&pool.lock);
  return state;
}

static void *worker(void *none) {
  uint32_t seen = 0;
  uint64_t state;
  Work work;
  (void)none;
  for (;;) {
    state = next_phase(seen);
    seen = PHASE(state);
    while (PHASE(state) == seen && FREE(state) &&
           !__atomic_compare_exchange_n(&pool.state, &state, state - SEAT + 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_ACQUIRE)) {
    }
    if (PHASE(state) != seen || !FREE(state)) continue;
    work = pool.work;
    take_chunks(&work, FREE(state));
    state = __atomic_sub_fetch(&pool.state, 1, __ATOMIC_SEQ_CST);
    if (BUSY(state) || !__atomic_load_n(&pool.waiting, __ATOMIC_SEQ_CST)) continue;
    pthread_mutex_lock(&pool.lock);
    pthread_cond_signal(&pool.done);
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
  uint64_t state;
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
  start_workers(a->seats);
  pool.work = work;
  state = (uint64_t)(PHASE(__atomic_load_n(&pool.state, __ATOMIC_RELAXED)) + 1) << 32;
  __atomic_store_n(&pool.state, state + a->seats * SEAT, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&pool.sleeping, __ATOMIC_SEQ_CST)) {
    pthread_mutex_lock(&pool.lock);
    pthread_cond_broadcast(&pool.wake);
    pthread_mutex_unlock(&pool.lock);
  }
  take_chunks(&work, 0);
  state = __atomic_and_fetch(&pool.state, ~(uint64_t)0xffff0000, __ATOMIC_SEQ_CST); /* no seat is free any more */
  for (i = 0; i < 2000 && BUSY(state); i++) {
    pause_a_little();
    state = __atomic_load_n(&pool.state, __ATOMIC_ACQUIRE);
  }
  if (BUSY(state)) {
    pthread_mutex_lock(&pool.lock);
    __atomic_store_n(&pool.waiting, 1, __ATOMIC_SEQ_CST); /* said before the state is looked at again */
    while (BUSY(__atomic_load_n(&pool.state, __ATOMIC_SEQ_CST))) pthread_cond_wait(&pool.done, &pool.lock);
    __atomic_store_n(&pool.waiting, 0, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&pool.lock);
  }
  pthread_mutex_unlock(&pool.launch);
}

/* Running ------------------------------------------------------------------------------------------------------- */

/* Elements of a line, `step` bytes apart, side by side `to_step` bytes apart. */
static void copy_line(uint8_t *to, int64_t to_step, const uint8_t *from, int64_t step, int64_t n, uint64_t item) {
  int64_t i;
#define LINE_OF(type)                                                                                                  \
  for (i = 0; i < n; i++, to += to_step, from += step) {                                                               \
    type x;                                                                                                            \
    memcpy(&x, from, sizeof x);                                                                                        \
    memcpy(to, &x, sizeof x);                                                                                          \
  }
  if (item == 1) LINE_OF(uint8_t)
  else if (item == 2) LINE_OF(uint16_t)
  else if (item == 4) LINE_OF(uint32_t)
  else if (item == 8) LINE_OF(uint64_t)
  else
    for (i = 0; i < n; i++, to += to_step, from += step) memcpy(to, from, item);
#undef LINE_OF
}

typedef struct {
  int64_t size, from, to; /* elements, and the bytes from one to the next on both sides */
} Axis;

enum { TILE = 16 };

/* A tile of a plane through memory of its own, so that lines of both sides are touched once whatever their distance. */
static void copy_tile(uint8_t *to, const uint8_t *from, const Axis *y, const Axis *x, int64_t ny, int64_t nx, uint64_t item) {
  int64_t i, j;
#define TILE_OF(type)                                                                                                  \
  {                                                                                                                    \
    type tile[TILE][TILE];                                                                                             \
    for (j = 0; j < nx; j++)                                                                                           \
      for (i = 0; i < ny; i++) memcpy(&tile[j][i], from + i * y->from + j * x->from, sizeof(type));                    \
    for (i = 0; i < ny; i++)                                                                                           \
      for (j = 0; j < nx; j++) memcpy(to + i * y->to + j * x->to, &tile[j][i], sizeof(type));                          \
  }
  if (item == 1) TILE_OF(uint8_t)
  else if (item == 2) TILE_OF(uint16_t)
  else if (item == 4) TILE_OF(uint32_t)
  else if (item == 8) TILE_OF(uint64_t)
  else
    for (i = 0; i < ny; i++) copy_line(to + i * y->to, x->to, from + i * y->from, x->from, nx, item);
#undef TILE_OF
}

/* A plane whose first axis lies closer together in the source, by tiles; of few lines, line by line. */
static void copy_plane(uint8_t *to, const uint8_t *from, const Axis *y, const Axis *x, uint64_t item) {
  int64_t i, j;
  for (i = 0; y->size < TILE && i < y->size; i++)
    copy_line(to + i * y->to, x->to, from + i * y->from, x->from, x->size, item);
  for (i = 0; y->size >= TILE && i < y->size; i += TILE)
    for (j = 0; j < x->size; j += TILE)
      copy_tile(to + i * y->to + j * x->to, from + i * y->from + j * x->from, y, x,
                y->size - i < TILE ? y->size - i : TILE, x->size - j < TILE ? x->size - j : TILE, item);
}

static void copy_axes(uint8_t *to, const uint8_t *from, const Axis *axis, uint32_t rank, uint64_t item) {
  int64_t i;
  if (!rank) memcpy(to, from, item);
  else if (rank == 1) copy_line(to, axis->to, from, axis->from, axis->size, item);
  else if (rank == 2 && llabs(axis->from) < llabs(axis[1].from)) copy_plane(to, from, axis, axis + 1, item);
  else
    for (i = 0; i < axis->size; i++) copy_axes(to + i * axis->to, from + i * axis->from, axis + 1, rank - 1, item);
}

/* Copy a view in row-major order: axes that lie together are one, and the closest one comes last but one. */
static void copy_strided(uint8_t *to, const uint8_t *from, const int64_t *shape, const int64_t *strides, uint32_t rank,
                         uint32_t item) {
  Axis axis[TESS_MAX_RANK], close;
  uint32_t n = 0, i, best = 0;
  int64_t step = item, block = item;
  for (i = rank; i--;) { /* from the last: axis[0] is the last one */
    if (shape[i] == 1) continue;
    if (!n && strides[i] == block) block *= shape[i];
    else if (n && strides[i] == axis[n - 1].from * axis[n - 1].size) axis[n - 1].size *= shape[i];
    else axis[n].size = shape[i], axis[n].from = strides[i], axis[n].to = step, n++;
    step *= shape[i];
  }
  for (i = 1; i < n; i++)
    if (llabs(axis[i].from) < llabs(axis[best].from)) best = i;
  if (best > 1 && block <= 16) { /* a plane of it and the last axis is copied by blocks */
    close = axis[best];
    memmove(axis + 2, axis + 1, (best - 1) * sizeof *axis);
    axis[1] = close;
  }
  for (i = 0; i < n / 2; i++) close = axis[i], axis[i] = axis[n - 1 - i], axis[n - 1 - i] = close;
  copy_axes(to, from, axis, n, (uint64_t)block);
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
    done = length; /* a scan is one launch and is not interrupted */
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

static Run *take_run(const TessEntry *e, Bound *b);
static tess_status_t settle(const TessEntry *e, Bound *b);
static tess_status_t run_actions(const TessEntry *e, const Bound *b, Run *r);
static uint8_t *weights_of(const TessEntry *e) {
  return (uint8_t *)(uintptr_t)(e->bundle->weights->data + e->bundle->weights_at);
}

/* Run a region on these addresses. */
static tess_status_t run_region(const TessEntry *e, const Bound *b, uint32_t which, uint8_t *const *in, uint8_t *const *out) {
  TessEntry *r = e->region[which];
  Bound *c = b->region[which];
  tess_status_t status;
  Run *run;
  pthread_mutex_lock(&r->lock);
  status = settle(r, c);
  run = status ? NULL : take_run(r, c);
  pthread_mutex_unlock(&r->lock);
  TRY(status);
  if (!run) return fail(TESS_ERROR_MEMORY, "%s: no memory for a run", e->name);
  run->bases[0] = run->arena;
  if (r->inputs) memcpy(run->bases + 1, in, r->inputs * sizeof *in);
  if (r->outputs) memcpy(run->bases + 1 + r->inputs, out, r->outputs * sizeof *out);
  run->bases[weights_slot(r)] = weights_of(r), run->bases[kept_slot(r)] = c->kept;
  status = run_actions(r, c, run);
  pthread_mutex_lock(&r->lock);
  run->next = c->idle, c->idle = run;
  pthread_mutex_unlock(&r->lock);
  return status;
}

static tess_status_t run_branch(const TessEntry *e, const Bound *b, const Action *a, Run *r) {
  const Step *s = &e->step[a->step];
  uint32_t n = s->in_count - 1, i;
  uint8_t **in = calloc((size_t)n + s->out_count + 1, sizeof *in), **out = in + n;
  tess_status_t status;
  if (!in) return fail(TESS_ERROR_MEMORY, "%s: no memory for a run", e->name);
  for (i = 0; i < n; i++) in[i] = address(b, r, s->in[1 + i]);
  for (i = 0; i < s->out_count; i++) out[i] = address(b, r, s->out[i]);
  status = run_region(e, b, s->region[!*address(b, r, s->in[0])], in, out);
  free(in);
  return status;
}

/* What a loop carries: a result of its body lies in spare memory, or in the memory of a carry that it takes over. */
typedef struct {
  uint8_t *memory, *spare; /* of a carry; that its result is written to if it takes no carry's */
  uint32_t of, gives;      /* the carry whose memory it takes, or the one whose memory is its next spare */
  int takes;
} Carry;

static void swap_bytes(uint8_t *a, uint8_t *b, uint64_t n) {
  uint8_t held[1024];
  while (n) {
    uint64_t k = n < sizeof held ? n : sizeof held;
    memcpy(held, a, k), memcpy(a, b, k), memcpy(b, held, k);
    a += k, b += k, n -= k;
  }
}

/* Memory for what a loop carries before its first step; `in` are its operands, of which those are copied that the
 * body writes over or hands on. */
static tess_status_t start_carries(const Bound *b, const Step *s, const Run *r, Carry *c, uint8_t **in) {
  const Bound *body = b->region[s->region[s->kind == REPEAT]];
  uint8_t *at = r->arena + b->arena;
  uint32_t i, j, k;
  for (k = 0; k < s->carry; k++)
    if (body->alias[k] >= 0) c[k].takes = 1, c[k].of = (uint32_t)body->alias[k], c[c[k].of].memory = address(b, r, s->out[c[k].of]);
  for (k = 0; k < s->carry; k++) {
    if (c[k].takes) continue;
    for (i = 0; i < s->carry; i++) { /* a carry of its size that is not taken over; its own if it can be */
      j = (k + i) % s->carry;
      if (!c[j].memory && b->bytes[s->out[j]] == b->bytes[s->out[k]]) break;
    }
    if (i == s->carry) return damaged("a loop carries another size");
    c[k].spare = address(b, r, s->out[j]), c[k].gives = j, c[j].memory = at;
    at += line_up(b->bytes[s->out[j]]);
  }
  for (i = 0; i < s->carry; i++)
    if (body->spoilt[i]) {
      if (b->bytes[s->out[i]]) memcpy(c[i].memory, in[i], b->bytes[s->out[i]]);
      in[i] = c[i].memory;
    }
  return TESS_OK;
}

/* Bring what was carried last to the memory of the results. */
static void end_carries(const Bound *b, const Step *s, const Run *r, uint8_t **in) {
  uint32_t i, j;
  for (i = 0; i < s->carry; i++) {
    uint8_t *to = address(b, r, s->out[i]);
    uint64_t n = b->bytes[s->out[i]];
    if (in[i] == to || !n) continue;
    for (j = i + 1; j < s->carry && (in[j] != to || !b->bytes[s->out[j]]); j++) {} /* what is empty lies anywhere */
    if (j < s->carry) swap_bytes(to, in[i], n), in[j] = in[i];
    else memmove(to, in[i], n);
    in[i] = to;
  }
}

static tess_status_t run_steps(const TessEntry *e, const Bound *b, const Step *s, const Run *r, Carry *c, uint8_t **in,
                               uint8_t **out) {
  uint8_t going = 1, *flags[1];
  int64_t done, length = 0;
  uint32_t i, k;
  flags[0] = &going;
  if (s->kind == TRAVERSE) size_value(&e->size[s->length], b->symbol, &length); /* it is known to fit */
  for (done = 0;; done++) {
    int64_t row = s->reverse ? length - 1 - done : done;
    if (s->kind == REPEAT) TRY(run_region(e, b, s->region[0], in, flags));
    if (s->kind == REPEAT ? !going : done == length) return TESS_OK;
    for (i = s->carry; i < s->carry + s->xs; i++)
      in[i] = address(b, r, s->in[i]) + (uint64_t)row * (b->bytes[s->in[i]] / (uint64_t)length);
    for (k = 0; k < s->carry; k++) out[k] = c[k].takes ? c[c[k].of].memory : c[k].spare;
    for (; k < s->out_count; k++)
      out[k] = address(b, r, s->out[k]) + (uint64_t)row * (b->bytes[s->out[k]] / (uint64_t)length);
    TRY(run_region(e, b, s->region[s->kind == REPEAT], in, out));
    for (k = 0; k < s->carry; k++)
      if (!c[k].takes) c[k].spare = c[c[k].gives].memory;
    for (k = 0; k < s->carry; k++) in[k] = c[k].memory = out[k];
  }
}

/* A loop whose body is a program. */
static tess_status_t run_control(const TessEntry *e, const Bound *b, const Action *a, Run *r) {
  const Step *s = &e->step[a->step];
  uint8_t **in = calloc((size_t)s->in_count + s->out_count + 1, sizeof *in), **out = in + s->in_count;
  Carry *c = calloc((size_t)s->carry + 1, sizeof *c);
  tess_status_t status;
  uint32_t i;
  if (!in || !c) {
    free(in), free(c);
    return fail(TESS_ERROR_MEMORY, "%s: no memory for a run", e->name);
  }
  for (i = 0; i < s->in_count; i++) in[i] = address(b, r, s->in[i]);
  status = start_carries(b, s, r, c, in);
  if (!status) status = run_steps(e, b, s, r, c, in, out);
  if (!status) end_carries(b, s, r, in);
  free(in), free(c);
  return status;
}

static size_t base_count(const TessEntry *e) { return (size_t)e->inputs + 2 * (size_t)e->outputs + 4; }

static Run *take_run(const TessEntry *e, Bound *b) {
  uint64_t arena = line_up(b->arena + b->extra), scratch = line_up(b->scratch) * b->threads;
  uint64_t addresses = line_up(((uint64_t)b->addresses + 1) * sizeof(void *)), head = line_up(sizeof(Run));
  uint64_t counters = (uint64_t)MOST_TOGETHER * LINE, bases = base_count(e) * sizeof(void *);
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

static tess_status_t run_range(const TessEntry *e, const Bound *b, Run *r, uint32_t first, uint32_t last);

/* Run the steps that read weights and constants alone, once; the entry is locked. */
static tess_status_t settle(const TessEntry *e, Bound *b) {
  void *kept = NULL, *brief = NULL;
  tess_status_t status;
  Run *r = NULL;
  if (b->settled || !b->first_late) return TESS_OK;
  if (posix_memalign(&kept, LINE, b->kept_bytes + 1) || posix_memalign(&brief, LINE, b->brief_bytes + 1) ||
      !(r = take_run(e, b))) {
    free(kept), free(brief);
    return fail(TESS_ERROR_MEMORY, "%s: no memory for what follows from its weights", e->name);
  }
  memset(r->bases, 0, base_count(e) * sizeof *r->bases);
  r->bases[0] = r->arena, r->bases[weights_slot(e)] = weights_of(e);
  r->bases[kept_slot(e)] = kept, r->bases[brief_slot(e)] = brief;
  status = run_range(e, b, r, 0, b->first_late);
  r->next = b->idle, b->idle = r;
  free(brief);
  if (status) free(kept);
  else b->kept = kept, b->settled = 1;
  return status;
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
    if (t->device) return fail(TESS_ERROR_DEVICE, "%s: input %u lies on device %u, expected 0", e->name, i, t->device);
    if (t->dtype != f->dtype || t->rank != f->rank)
      return fail(TESS_ERROR_TYPE, "%s: input %u '%s' is %s of rank %u, expected %s of rank %u", e->name, i,
                  e->input[i].name, dtype_name(t->dtype), t->rank, dtype_name(f->dtype), f->rank);
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
    status = make_bound(e, symbols, threads, 0, &b);
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

static tess_status_t plan_on_device(const TessEntry *e, const TessTensorDesc *inputs, uint32_t count,
                                    TessTensorDesc *outputs, uint64_t *bytes);
static tess_status_t run_on_device(TessEntry *e, TessStream *stream, const TessTensorDesc *inputs, uint32_t count,
                                   TessTensorDesc *outputs, int waits);

tess_status_t tess_entry_plan(TessEntry *e, const TessTensorDesc *inputs, uint32_t input_count, TessTensorDesc *outputs,
                              uint32_t output_count, uint64_t *bytes) {
  Bound *b = NULL;
  tess_status_t status;
  if (!e || (output_count && !outputs)) return fail(TESS_ERROR_ARGUMENT, "tess_entry_plan: null");
  if (output_count != e->outputs)
    return fail(TESS_ERROR_ARGUMENT, "%s: room for %u outputs, expected %u", e->name, output_count, e->outputs);
  if (e->device) return plan_on_device(e, inputs, input_count, outputs, bytes);
  pthread_mutex_lock(&e->lock);
  status = bound_for(e, inputs, input_count, &b);
  pthread_mutex_unlock(&e->lock);
  if (status) return status;
  describe_outputs(e, b, outputs);
  if (bytes) *bytes = b->kept_bytes + b->arena + b->extra + line_up(b->scratch) * b->threads + b->inner;
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
      r->bases[2 + e->inputs + e->outputs + i] = made.data;
    } else {
      TRY(tess_tensor_validate(t));
      if (t->device) return fail(TESS_ERROR_DEVICE, "%s: output %u lies on device %u, expected 0", e->name, i, t->device);
      if (t->dtype != e->buffer[o].dtype || t->rank != rank)
        return fail(TESS_ERROR_TYPE, "%s: output %u '%s' is %s of rank %u, expected %s of rank %u", e->name, i,
                    e->output[i].name, dtype_name(t->dtype), t->rank, dtype_name(e->buffer[o].dtype), rank);
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

/* Sorting ------------------------------------------------------------------------------------------------------- */

typedef struct {
  uint64_t key; /* a number that orders as the element does */
  uint64_t place;
} Placed;

/* A float by the bits of its format: NaN after every number, and both zeros the same. */
static uint64_t float_key(uint64_t bits, uint32_t width, uint64_t largest) {
  uint64_t sign = 1ull << (width - 1), size = bits & (sign - 1);
  if (size > largest) return UINT64_MAX;
  if (!size) return sign;
  return bits & sign ? sign - size : sign + size;
}

static uint64_t key_of(const uint8_t *p, uint32_t dtype) {
  const uint64_t top = 1ull << 63;
  int64_t i64;
  int32_t i32;
  int16_t i16;
  uint64_t u64;
  uint32_t u32;
  uint16_t u16;
  switch (dtype) {
    case TESS_I4: case TESS_I8: return (uint64_t)(int64_t)(int8_t)*p + top;
    case TESS_I16: return memcpy(&i16, p, 2), (uint64_t)(int64_t)i16 + top;
    case TESS_I32: return memcpy(&i32, p, 4), (uint64_t)(int64_t)i32 + top;
    case TESS_I64: return memcpy(&i64, p, 8), (uint64_t)i64 + top;
    case TESS_U16: return memcpy(&u16, p, 2), u16;
    case TESS_U32: return memcpy(&u32, p, 4), u32;
    case TESS_U64: return memcpy(&u64, p, 8), u64;
    case TESS_F8E4M3: return float_key(*p, 8, 0x7e);
    case TESS_F8E5M2: return float_key(*p, 8, 0x7c);
    case TESS_F16: return memcpy(&u16, p, 2), float_key(u16, 16, 0x7c00);
    case TESS_BF16: return memcpy(&u16, p, 2), float_key(u16, 16, 0x7f80);
    case TESS_F32: case TESS_TF32: return memcpy(&u32, p, 4), float_key(u32, 32, 0x7f800000);
    case TESS_F64: return memcpy(&u64, p, 8), float_key(u64, 64, 0x7ffull << 52);
    default: return *p; /* bool and u8 */
  }
}

/* Sort n elements by merging, which is stable; the sorted ones are in what is given back. */
static Placed *merge_sort(Placed *from, Placed *to, uint64_t n) {
  uint64_t width, at;
  for (width = 1; width < n; width *= 2) {
    Placed *sorted = to;
    for (at = 0; at < n; at += 2 * width) {
      uint64_t i = at, middle = at + width < n ? at + width : n, end = middle + width < n ? middle + width : n;
      uint64_t j = middle, k;
      for (k = at; k < end; k++)
        to[k] = j == end || (i < middle && from[i].key <= from[j].key) ? from[i++] : from[j++];
    }
    to = from, from = sorted;
  }
  return from;
}

/* The first k of n elements in order, by insertion: few are among the first. */
static Placed *first_of(const Placed *from, Placed *to, uint64_t n, uint64_t k) {
  uint64_t i, held = 0, at;
  for (i = 0; i < n; i++) {
    if (held == k && from[i].key >= to[k - 1].key) continue;
    for (at = held < k ? held++ : k - 1; at && to[at - 1].key > from[i].key; at--) to[at] = to[at - 1];
    to[at] = from[i];
  }
  return to;
}

typedef struct {
  const Step *step;
  const int64_t *shape, *stride;       /* of what is sorted */
  const int64_t *out_stride[2];
  const uint8_t *x;
  uint8_t *to[2];
  uint32_t rank, item, dtype;
  int64_t k;
} Order;

static void order_line(const Order *o, const int64_t *at, Placed *work) {
  const Step *s = o->step;
  int64_t n = o->shape[s->carry], k = o->k, j, along = o->stride[s->carry];
  const uint8_t *line = o->x;
  Placed *found;
  uint32_t i, axis;
  for (i = 0; i < o->rank; i++) line += at[i] * o->stride[i];
  for (j = 0; j < n; j++) {
    work[j].key = key_of(line + j * along, o->dtype), work[j].place = (uint64_t)j;
    if (s->reverse) work[j].key = ~work[j].key;
  }
  found = k <= 64 && k < n / 4 ? first_of(work, work + n, (uint64_t)n, (uint64_t)k) : merge_sort(work, work + n, (uint64_t)n);
  for (i = 0; i < s->out_count; i++) {
    uint8_t *y = o->to[i];
    for (axis = 0; axis < o->rank; axis++) y += at[axis] * o->out_stride[i][axis];
    for (j = 0; j < k; j++, y += o->out_stride[i][s->carry]) {
      int64_t place = (int64_t)found[j].place;
      if (i || s->xs == 2) memcpy(y, &place, 8);
      else memcpy(y, line + place * along, o->item);
    }
  }
}

static void order_lines(void *const *parameters, const int64_t *sizes, int64_t begin, int64_t end, void *scratch) {
  const Order *o = parameters[0];
  int64_t line;
  (void)sizes;
  for (line = begin; line < end; line++) {
    int64_t at[TESS_MAX_RANK] = {0}, rest = line;
    uint32_t i;
    for (i = o->rank; i--;)
      if (i != o->step->carry) at[i] = rest % o->shape[i], rest /= o->shape[i];
    order_line(o, at, scratch);
  }
}

static void run_order(const TessEntry *e, const Bound *b, const Action *a, Run *r) {
  const Step *s = &e->step[a->step];
  const Buffer *f = &e->buffer[s->in[0]];
  Order o;
  uint32_t i;
  o.step = s, o.shape = b->shape[s->in[0]], o.stride = b->stride[s->in[0]], o.x = address(b, r, s->in[0]);
  o.rank = f->rank, o.item = f->item, o.dtype = f->dtype, o.k = b->shape[s->out[0]][s->carry];
  for (i = 0; i < s->out_count; i++) o.to[i] = address(b, r, s->out[i]), o.out_stride[i] = b->stride[s->out[i]];
  r->addresses[b->job[a->first].first] = &o;
  run_phase(b, a, r);
}

static tess_status_t run_range(const TessEntry *e, const Bound *b, Run *r, uint32_t first, uint32_t last) {
  uint32_t i, j;
  for (i = first; i < last; i++) {
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
    } else if (a->kind == ORDER) {
      run_order(e, b, a, r);
    } else if (a->kind == CHECK) {
      const Step *s = &e->step[a->step];
      if (!*(const uint8_t *)address(b, r, s->in[0]))
        return fail(TESS_ERROR_SINGULAR, "%s: %.*s", e->name, (int)(s->reason_bytes < 255 ? s->reason_bytes : 255),
                    (const char *)s->reason);
    } else if (a->kind == BRANCH) {
      TRY(run_branch(e, b, a, r));
    } else if (is_control(a->kind)) {
      TRY(run_control(e, b, a, r));
    } else {
      TRY(run_loop(e, b, a, r));
    }
  }
  return TESS_OK;
}

static tess_status_t run_actions(const TessEntry *e, const Bound *b, Run *r) {
  uint32_t i;
  TRY(run_range(e, b, r, b->first_late, b->actions));
  for (i = 0; i < e->outputs; i++)
    if (!b->held[i]) copy_buffer(e, b, r, r->bases[1 + e->inputs + i], e->output[i].buffer);
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
  TRY(allow(e->name, e->numerics));
  if (e->device) return run_on_device(e, NULL, inputs, input_count, outputs, 1);
  pthread_mutex_lock(&e->lock);
  status = bound_for(e, inputs, input_count, &b);
  if (!status) status = settle(e, b);
  if (!status && !(r = take_run(e, b))) status = fail(TESS_ERROR_MEMORY, "%s: no memory for a run", e->name);
  pthread_mutex_unlock(&e->lock);
  if (status) return status;
  memset(r->bases, 0, base_count(e) * sizeof *r->bases);
  r->bases[0] = r->arena;
  r->bases[weights_slot(e)] = weights_of(e), r->bases[kept_slot(e)] = b->kept;
  status = take_inputs(e, b, inputs, r);
  if (!status) status = take_outputs(e, b, inputs, outputs, r);
  if (!status) status = run_actions(e, b, r);
  for (i = 0; i < e->inputs; i++)
    if (r->bases[1 + i] && r->bases[1 + i] != inputs[i].data) free(r->bases[1 + i]);
  if (status)
    for (i = 0; i < e->outputs; i++)
      if (r->bases[2 + e->inputs + e->outputs + i]) tess_tensor_free(&outputs[i]);
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
static void describe_on_device(const TessEntry *e, int output, uint32_t i, TessValueInfo *out);
static void kernel_on_device(const TessEntry *e, uint32_t i, TessKernelDesc *out);

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
  if (e->device) return describe_on_device(e, 0, i, out), TESS_OK;
  return describe(e, &e->input[i], out);
}

tess_status_t tess_entry_output(const TessEntry *e, uint32_t i, TessValueInfo *out) {
  if (!e || !out || i >= e->outputs) return fail(TESS_ERROR_ARGUMENT, "tess_entry_output: there is no output %u", i);
  if (e->device) return describe_on_device(e, 1, i, out), TESS_OK;
  return describe(e, &e->output[i], out);
}

tess_status_t tess_entry_kernel(const TessEntry *e, uint32_t i, TessKernelDesc *out) {
  const Kernel *k;
  int64_t n;
  if (!e || !out || i >= e->kernels) return fail(TESS_ERROR_ARGUMENT, "tess_entry_kernel: there is no kernel %u", i);
  if (e->device) return kernel_on_device(e, i, out), TESS_OK;
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

/* GPUs ---------------------------------------------------------------------------------------------------------- */

/* The CUDA driver, by the names and types of cuda.h; what its library calls otherwise has a second name. */
typedef uint64_t Address;
#define CUDA_NEEDED(X)                                                                                            \
  X(cuInit, "cuInit", (unsigned))                                                                                 \
  X(cuDeviceGetCount, "cuDeviceGetCount", (int *))                                                                \
  X(cuDeviceGet, "cuDeviceGet", (int *, int))                                                                     \
  X(cuDeviceGetAttribute, "cuDeviceGetAttribute", (int *, int, int))                                              \
  X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (void **, int))                                         \
  X(cuCtxPushCurrent, "cuCtxPushCurrent_v2", (void *))                                                            \
  X(cuCtxPopCurrent, "cuCtxPopCurrent_v2", (void **))                                                             \
  X(cuCtxSynchronize, "cuCtxSynchronize", (void))                                                                 \
  X(cuGetErrorName, "cuGetErrorName", (int, const char **))                                                       \
  X(cuGetErrorString, "cuGetErrorString", (int, const char **))                                                   \
  X(cuMemAlloc, "cuMemAlloc_v2", (Address *, size_t))                                                             \
  X(cuMemFree, "cuMemFree_v2", (Address))                                                                         \
  X(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", (Address, const void *, size_t, void *))                           \
  X(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", (void *, Address, size_t, void *))                                 \
  X(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2", (Address, Address, size_t, void *))                                \
  X(cuModuleLoadData, "cuModuleLoadData", (void **, const void *))                                                \
  X(cuModuleUnload, "cuModuleUnload", (void *))                                                                   \
  X(cuModuleGetFunction, "cuModuleGetFunction", (void **, void *, const char *))                                  \
  X(cuFuncSetAttribute, "cuFuncSetAttribute", (void *, int, int))                                                 \
  X(cuLaunchKernel, "cuLaunchKernel",                                                                             \
    (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **))     \
  X(cuStreamCreate, "cuStreamCreate", (void **, unsigned))                                                        \
  X(cuStreamDestroy, "cuStreamDestroy_v2", (void *))                                                              \
  X(cuStreamSynchronize, "cuStreamSynchronize", (void *))                                                         \
  X(cuStreamWaitEvent, "cuStreamWaitEvent", (void *, void *, unsigned))                                           \
  X(cuEventCreate, "cuEventCreate", (void **, unsigned))                                                          \
  X(cuEventDestroy, "cuEventDestroy_v2", (void *))                                                                \
  X(cuEventRecord, "cuEventRecord", (void *, void *))                                                             \
  X(cuEventSynchronize, "cuEventSynchronize", (void *))                                                           \
  X(cuEventElapsedTime, "cuEventElapsedTime", (float *, void *, void *))
#define CUDA_OF_NEWER(X)                                                                                          \
  X(cuFuncGetParamInfo, "cuFuncGetParamInfo", (void *, size_t, size_t *, size_t *))                               \
  X(cuTensorMapReplaceAddress, "cuTensorMapReplaceAddress", (void *, void *))                                     \
  X(cuTensorMapEncodeTiled, "cuTensorMapEncodeTiled",                                                             \
    (void *, int, uint32_t, void *, const uint64_t *, const uint64_t *, const uint32_t *, const uint32_t *, int,  \
     int, int, int))

#define DECLARE(name, symbol, types) int (*name) types;
static struct {
  CUDA_NEEDED(DECLARE)
  CUDA_OF_NEWER(DECLARE)
  pthread_mutex_t lock;
  int tried, count;
  const char *absent; /* why there is none */
  void *context[TESS_MAX_DEVICES];
} cuda = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void find_cuda(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL), *f;
  cuda.tried = 1, cuda.absent = "there is no libcuda.so.1";
  if (!library) return;
  cuda.absent = "it is too old";
#define FIND(name, symbol, types)                \
  f = dlsym(library, symbol);                    \
  memcpy((void *)&cuda.name, &f, sizeof f);
  CUDA_NEEDED(FIND)
  CUDA_OF_NEWER(FIND)
#define THERE(name, symbol, types) \
  if (!cuda.name) return;
  CUDA_NEEDED(THERE)
  cuda.absent = "it finds no device";
  if (cuda.cuInit(0) || cuda.cuDeviceGetCount(&cuda.count) || cuda.count < 1) {
    cuda.count = 0;
    return;
  }
  if (cuda.count > TESS_MAX_DEVICES) cuda.count = TESS_MAX_DEVICES;
  cuda.absent = NULL;
}

static tess_status_t cuda_failed(const char *what, int code) {
  const char *name = NULL, *text = NULL;
  cuda.cuGetErrorName(code, &name);
  cuda.cuGetErrorString(code, &text);
  return fail(code == 2 ? TESS_ERROR_MEMORY : TESS_ERROR_DEVICE, "cuda: %s failed with %s (%s)", what,
              name ? name : "an unknown error", text ? text : "");
}

#define CUDA(call, arguments)                               \
  do {                                                      \
    int code_ = cuda.call arguments;                        \
    if (code_) return cuda_failed(#call, code_);            \
  } while (0)

/* Make a device current for the calls of this thread, until leave_device. */
static tess_status_t enter_device(uint32_t device) {
  uint32_t i = device - TESS_DEVICE_CUDA;
  int handle, code = 0;
  pthread_mutex_lock(&cuda.lock);
  if (!cuda.tried) find_cuda();
  if (!cuda.absent && device >= TESS_DEVICE_CUDA && i < (uint32_t)cuda.count && !cuda.context[i]) {
    code = cuda.cuDeviceGet(&handle, (int)i);
    if (!code) code = cuda.cuDevicePrimaryCtxRetain(&cuda.context[i], handle);
  }
  pthread_mutex_unlock(&cuda.lock);
  if (device < TESS_DEVICE_CUDA || i >= TESS_MAX_DEVICES) return fail(TESS_ERROR_DEVICE, "device %u is unknown", device);
  if (cuda.absent) return fail(TESS_ERROR_DEVICE, "cuda: there is no driver for device %u: %s", i, cuda.absent);
  if (i >= (uint32_t)cuda.count) return fail(TESS_ERROR_DEVICE, "cuda: there is no device %u, there are %d", i, cuda.count);
  if (code) return cuda_failed("cuDevicePrimaryCtxRetain", code);
  CUDA(cuCtxPushCurrent, (cuda.context[i]));
  return TESS_OK;
}

static void leave_device(void) {
  void *before;
  cuda.cuCtxPopCurrent(&before);
}

tess_status_t tess_device_count(uint32_t kind, uint32_t *count) {
  if (!count || (kind != TESS_DEVICE_CPU && kind != TESS_DEVICE_CUDA))
    return fail(TESS_ERROR_ARGUMENT, "tess_device_count: kind %u is unknown, or count is null", kind);
  *count = 1;
  if (kind == TESS_DEVICE_CPU) return TESS_OK;
  pthread_mutex_lock(&cuda.lock);
  if (!cuda.tried) find_cuda();
  *count = (uint32_t)cuda.count;
  pthread_mutex_unlock(&cuda.lock);
  return TESS_OK;
}

#define ON_DEVICE(device, work)          \
  do {                                   \
    tess_status_t done_;                 \
    TRY(enter_device(device));           \
    done_ = (work);                      \
    leave_device();                      \
    return done_;                        \
  } while (0)

static tess_status_t device_alloc(uint64_t bytes, Address *out) {
  CUDA(cuMemAlloc, (out, (size_t)(bytes ? bytes : 1)));
  return TESS_OK;
}

static tess_status_t device_free(Address at) {
  CUDA(cuMemFree, (at));
  return TESS_OK;
}

/* Copy on a stream; one of the two is on its device. */
static tess_status_t device_copy(void *to, uint32_t to_device, const void *from, uint32_t from_device, uint64_t bytes,
                                 void *stream) {
  if (!bytes) return TESS_OK;
  if (!from_device) CUDA(cuMemcpyHtoDAsync, ((Address)(uintptr_t)to, from, (size_t)bytes, stream));
  else if (!to_device) CUDA(cuMemcpyDtoHAsync, (to, (Address)(uintptr_t)from, (size_t)bytes, stream));
  else CUDA(cuMemcpyDtoDAsync, ((Address)(uintptr_t)to, (Address)(uintptr_t)from, (size_t)bytes, stream));
  return TESS_OK;
}

static tess_status_t wait_for(void *stream) {
  CUDA(cuStreamSynchronize, (stream));
  return TESS_OK;
}

tess_status_t tess_memory_alloc(uint32_t device, uint64_t bytes, void **out) {
  if (!out) return fail(TESS_ERROR_ARGUMENT, "tess_memory_alloc: out is null");
  *out = NULL;
  if (bytes > MOST_BYTES || (!device && posix_memalign(out, LINE, bytes ? (size_t)bytes : 1)))
    return fail(TESS_ERROR_MEMORY, "tess_memory_alloc: no memory for %llu bytes", (unsigned long long)bytes);
  if (!device) return TESS_OK;
  {
    Address at = 0;
    tess_status_t status;
    TRY(enter_device(device));
    status = device_alloc(bytes, &at);
    leave_device();
    *out = (void *)(uintptr_t)at;
    return status;
  }
}

tess_status_t tess_memory_free(uint32_t device, void *memory) {
  if (!device || !memory) return free(memory), TESS_OK;
  ON_DEVICE(device, device_free((Address)(uintptr_t)memory));
}

tess_status_t tess_memory_copy(void *to, uint32_t to_device, const void *from, uint32_t from_device, uint64_t bytes) {
  tess_status_t status;
  if (bytes && (!to || !from)) return fail(TESS_ERROR_ARGUMENT, "tess_memory_copy: null");
  if (to_device && from_device && to_device != from_device)
    return fail(TESS_ERROR_DEVICE, "tess_memory_copy: from device %u to device %u, copy through this processor", from_device,
                to_device);
  if (!to_device && !from_device) return (bytes ? memmove(to, from, (size_t)bytes) : NULL), TESS_OK;
  TRY(enter_device(to_device ? to_device : from_device));
  status = device_copy(to, to_device, from, from_device, bytes, NULL);
  if (!status) status = wait_for(NULL);
  leave_device();
  return status;
}

struct TessStream {
  uint32_t device;
  void *handle;
};
struct TessEvent {
  uint32_t device;
  void *handle;
  struct timespec at; /* of this processor */
};

static tess_status_t make_stream(void **out) {
  CUDA(cuStreamCreate, (out, 1u)); /* not in order with the stream 0 */
  return TESS_OK;
}

static tess_status_t make_event(void **out) {
  CUDA(cuEventCreate, (out, 0u));
  return TESS_OK;
}

static tess_status_t open_handle(uint32_t device, tess_status_t (*make)(void **), void **handle) {
  if (!device) return TESS_OK;
  ON_DEVICE(device, make(handle));
}

tess_status_t tess_stream_create(uint32_t device, TessStream **out) {
  tess_status_t status;
  if (!out) return fail(TESS_ERROR_ARGUMENT, "tess_stream_create: out is null");
  *out = calloc(1, sizeof **out);
  if (!*out) return fail(TESS_ERROR_MEMORY, "tess_stream_create: no memory");
  (*out)->device = device;
  status = open_handle(device, make_stream, &(*out)->handle);
  if (status) free(*out), *out = NULL;
  return status;
}

tess_status_t tess_stream_synchronize(TessStream *s) {
  if (!s) return fail(TESS_ERROR_ARGUMENT, "tess_stream_synchronize: null");
  if (!s->device) return TESS_OK;
  ON_DEVICE(s->device, wait_for(s->handle));
}

void tess_stream_destroy(TessStream *s) {
  if (s && s->device && !enter_device(s->device)) {
    cuda.cuStreamSynchronize(s->handle);
    cuda.cuStreamDestroy(s->handle);
    leave_device();
  }
  free(s);
}

tess_status_t tess_event_create(uint32_t device, TessEvent **out) {
  tess_status_t status;
  if (!out) return fail(TESS_ERROR_ARGUMENT, "tess_event_create: out is null");
  *out = calloc(1, sizeof **out);
  if (!*out) return fail(TESS_ERROR_MEMORY, "tess_event_create: no memory");
  (*out)->device = device;
  status = open_handle(device, make_event, &(*out)->handle);
  if (status) free(*out), *out = NULL;
  return status;
}

static tess_status_t record_event(TessEvent *e, const TessStream *s) {
  CUDA(cuEventRecord, (e->handle, s->handle));
  return TESS_OK;
}

static tess_status_t await_event(const TessStream *s, const TessEvent *e) {
  CUDA(cuStreamWaitEvent, (s->handle, e->handle, 0u));
  return TESS_OK;
}

static tess_status_t synchronize_event(const TessEvent *e) {
  CUDA(cuEventSynchronize, (e->handle));
  return TESS_OK;
}

static tess_status_t elapsed_between(const TessEvent *start, const TessEvent *end, double *seconds) {
  float milliseconds = 0;
  CUDA(cuEventElapsedTime, (&milliseconds, start->handle, end->handle));
  *seconds = 1e-3 * (double)milliseconds;
  return TESS_OK;
}

tess_status_t tess_event_record(TessEvent *e, TessStream *s) {
  if (!e || !s || e->device != s->device) return fail(TESS_ERROR_ARGUMENT, "tess_event_record: null, or of another device");
  if (!e->device) return clock_gettime(CLOCK_MONOTONIC, &e->at), TESS_OK;
  ON_DEVICE(e->device, record_event(e, s));
}

tess_status_t tess_stream_wait(TessStream *s, TessEvent *e) {
  if (!e || !s) return fail(TESS_ERROR_ARGUMENT, "tess_stream_wait: null");
  if (!e->device) return TESS_OK; /* it has happened */
  if (!s->device) return tess_event_synchronize(e);
  ON_DEVICE(s->device, await_event(s, e));
}

tess_status_t tess_event_synchronize(TessEvent *e) {
  if (!e) return fail(TESS_ERROR_ARGUMENT, "tess_event_synchronize: null");
  if (!e->device) return TESS_OK;
  ON_DEVICE(e->device, synchronize_event(e));
}

tess_status_t tess_event_elapsed(TessEvent *start, TessEvent *end, double *seconds) {
  if (!start || !end || !seconds || start->device != end->device)
    return fail(TESS_ERROR_ARGUMENT, "tess_event_elapsed: null, or of two devices");
  if (start->device) ON_DEVICE(start->device, elapsed_between(start, end, seconds));
  *seconds = (double)(end->at.tv_sec - start->at.tv_sec) + 1e-9 * (double)(end->at.tv_nsec - start->at.tv_nsec);
  return TESS_OK;
}

void tess_event_destroy(TessEvent *e) {
  if (e && e->device && !enter_device(e->device)) {
    cuda.cuEventDestroy(e->handle);
    leave_device();
  }
  free(e);
}

/* Programs on GPUs ---------------------------------------------------------------------------------------------- */

enum { POINTER, VALUE, BOX, WIDEST = 64, MAP_BYTES = 128, MAP_AXES = 5, APART = 256, MOST_ADDED = 8 };
static const uint64_t MOST_ON_DEVICE = (uint64_t)1 << 44;

typedef struct {
  char name[64];
  uint32_t dtype, rank, cell;
  int64_t shape[TESS_MAX_RANK];
  uint64_t offset, bytes;
} DeviceValue;
typedef struct {
  uint32_t kind, cell, bytes, axes, dtype, swizzle, map; /* which of the descriptors */
  uint64_t offset, shape[MAP_AXES], strides[MAP_AXES];
  uint32_t box[MAP_AXES];
  uint8_t value[WIDEST];
} Parameter;
typedef struct {
  char name[64];
  uint32_t code, blocks, threads, shared, own, parameters, first, added;
  void *function;
} DeviceLaunch;
typedef struct {
  char name[128];
  uint64_t at, bytes;
  void *module;
} DeviceCode;
typedef struct DeviceRun {
  struct DeviceRun *next;
  void *stream;
  Address memory;
  Address *address; /* of every parameter; values are read where the program has them */
  void **list, **made; /* made: the memory of outputs that had none */
  uint8_t *maps;
} DeviceRun;
struct DeviceProgram {
  uint32_t device, capability;
  DeviceValue *input, *output;
  uint32_t cells, first_data, datas, results, launches, codes, parameters, maps;
  uint64_t *size;    /* of cells */
  uint64_t *offset;  /* of cells in the memory of a run, or of data in that of the entry */
  uint64_t *data_at; /* in the weights */
  uint64_t memory, held_bytes;
  Address held;
  void *stream;
  uint8_t *copy; /* of the plan and the code, which is what was verified */
  DeviceCode *code;
  DeviceLaunch *launch;
  Parameter *parameter;
  uint8_t *maps_made;
  DeviceRun *idle;
};

static void free_device_program(TessEntry *e) {
  DeviceProgram *d = e->device;
  DeviceRun *r, *next;
  uint32_t i;
  if (!d->device) goto memory;
  if (enter_device(d->device)) goto memory; /* the driver has gone */
  cuda.cuCtxSynchronize(); /* streams of runs may be gone */
  for (r = d->idle; r; r = r->next) cuda.cuMemFree(r->memory);
  if (d->held) cuda.cuMemFree(d->held);
  for (i = 0; d->code && i < d->codes; i++)
    if (d->code[i].module) cuda.cuModuleUnload(d->code[i].module);
  if (d->stream) cuda.cuStreamDestroy(d->stream);
  leave_device();
memory:
  for (r = d->idle; r; r = next) next = r->next, free(r);
  free(d->input), free(d->output), free(d->size), free(d->offset), free(d->data_at), free(d->copy), free(d->code);
  free(d->launch), free(d->parameter), free(d->maps_made), free(d);
  e->device = NULL;
}

static tess_status_t read_device_values(TessEntry *e, uint32_t *count, DeviceValue **out, int output) {
  uint32_t i, j;
  TRY(take_count(e, 12, count, (void **)out, sizeof **out));
  for (i = 0; i < *count; i++) {
    DeviceValue *v = &(*out)[i];
    TRY(take_name(e, v->name, sizeof v->name));
    TRY(take_below(e, sizeof ITEM, &v->dtype));
    TRY(take_below(e, TESS_MAX_RANK + 1, &v->rank));
    if (!v->dtype) return damaged("a dtype is unknown");
    v->bytes = ITEM[v->dtype], v->cell = i;
    for (j = 0; j < v->rank; j++) {
      uint64_t n;
      TRY(take_u64(e, &n));
      if (n > MOST_ON_DEVICE || __builtin_mul_overflow(v->bytes, n, &v->bytes) || v->bytes > MOST_ON_DEVICE)
        return damaged("a size is out of range");
      v->shape[j] = (int64_t)n;
    }
    if (output) {
      TRY(take_u32(e, &v->cell));
      TRY(take_u64(e, &v->offset));
    }
  }
  return TESS_OK;
}

/* Whether bytes of a cell are there. */
static int in_cell(const DeviceProgram *d, uint32_t cell, uint64_t offset, uint64_t bytes) {
  return cell < d->cells && offset <= d->size[cell] && bytes <= d->size[cell] - offset;
}

static tess_status_t read_parameter(TessEntry *e, DeviceProgram *d, Parameter *p) {
  uint32_t j;
  TRY(take_below(e, 3, &p->kind));
  if (p->kind == VALUE) {
    TRY(take_below(e, WIDEST + 1, &p->bytes));
    if (!enough(e, p->bytes)) return damaged("it ends early");
    memcpy(p->value, e->at, p->bytes);
    e->at += p->bytes;
    return TESS_OK;
  }
  p->bytes = 8;
  TRY(take_u32(e, &p->cell));
  TRY(take_u64(e, &p->offset));
  if (!in_cell(d, p->cell, p->offset, 0)) return damaged("an address lies outside of its memory");
  if (p->kind == POINTER) return TESS_OK;
  p->bytes = MAP_BYTES, p->map = d->maps++;
  TRY(take_below(e, 13, &p->dtype));
  TRY(take_below(e, 4, &p->swizzle));
  TRY(take_below(e, MAP_AXES + 1, &p->axes));
  if (!p->axes) return damaged("a descriptor has no axes");
  for (j = 0; j < p->axes; j++) TRY(take_u64(e, &p->shape[j]));
  for (j = 0; j + 1 < p->axes; j++) TRY(take_u64(e, &p->strides[j]));
  for (j = 0; j < p->axes; j++) TRY(take_u32(e, &p->box[j]));
  return TESS_OK;
}

static tess_status_t read_launches(TessEntry *e, DeviceProgram *d) {
  uint32_t i, j, room = 0;
  TRY(take_count(e, 28, &d->launches, (void **)&d->launch, sizeof *d->launch));
  for (i = 0; i < d->launches; i++) {
    DeviceLaunch *l = &d->launch[i];
    TRY(take_name(e, l->name, sizeof l->name));
    TRY(take_below(e, d->codes, &l->code));
    TRY(take_below(e, 0x7fffffff, &l->blocks));
    TRY(take_below(e, 1025, &l->threads));
    TRY(take_below(e, 1u << 20, &l->shared));
    TRY(take_below(e, 2, &l->own));
    TRY(take_u32(e, &l->parameters));
    if (!l->blocks || !l->threads || !enough(e, (uint64_t)l->parameters * 8)) return damaged("a launch is out of range");
    l->first = d->parameters;
    if (d->parameters + (uint64_t)l->parameters + MOST_ADDED > room) {
      Parameter *more;
      uint64_t wanted = 2 * (d->parameters + (uint64_t)l->parameters + MOST_ADDED);
      if (wanted > 1u << 24) return damaged("it has too many launches");
      more = realloc(d->parameter, wanted * sizeof *more);
      if (!more) return fail(TESS_ERROR_MEMORY, "bundle: no memory for its plan");
      d->parameter = more, room = (uint32_t)wanted;
    }
    memset(d->parameter + l->first, 0, (l->parameters + MOST_ADDED) * sizeof *d->parameter);
    for (j = 0; j < l->parameters; j++) TRY(read_parameter(e, d, &d->parameter[l->first + j]));
    d->parameters += l->parameters + MOST_ADDED;
  }
  if (e->at != e->end) return damaged("bytes follow its end");
  return TESS_OK;
}

static uint64_t apart(uint64_t n) { return (n + APART - 1) / APART * APART; }

static tess_status_t read_device_plan(TessEntry *e, DeviceProgram *d, uint64_t code_bytes) {
  uint64_t arena, scratch, *data_size = NULL, room = e->bundle->weights->size - e->bundle->weights_at, total = 0;
  uint32_t i, version, n = 0;
  char target[40];
  if (!enough(e, 8) || memcmp(e->at, "TSGP", 4)) return damaged("it is none");
  e->at += 4;
  TRY(take_u32(e, &version));
  if (version != 1 && version != 2)
    return fail(TESS_ERROR_FILE, "bundle: its plan has version %u, expected 1 or 2", version);
  TRY(take_name(e, target, sizeof target));
  if (strcmp(target, e->target)) return damaged("it is for another target");
  if (version > 1) TRY(take_name(e, e->numerics, sizeof e->numerics));
  TRY(take_u64(e, &arena));
  TRY(take_u64(e, &scratch));
  TRY(read_device_values(e, &e->inputs, &d->input, 0));
  TRY(take_count(e, 16, &d->datas, (void **)&d->data_at, sizeof *d->data_at));
  data_size = calloc((size_t)d->datas + 1, sizeof *data_size);
  if (!data_size) return fail(TESS_ERROR_MEMORY, "bundle: no memory for its plan");
  for (i = 0; i < d->datas; i++) {
    d->data_at[i] = u64_at(e->at), data_size[i] = u64_at(e->at + 8), e->at += 16;
    if (d->data_at[i] > room || data_size[i] > room - d->data_at[i]) {
      free(data_size);
      return damaged("a weight lies outside of the file");
    }
  }
  d->first_data = e->inputs;
  {
    tess_status_t status = take_u32(e, &d->results);
    if (!status && !enough(e, (uint64_t)d->results * 8)) status = damaged("a list is too long");
    d->cells = e->inputs + d->datas + d->results + 2;
    if (!status) {
      d->size = calloc(d->cells, sizeof *d->size), d->offset = calloc(d->cells, sizeof *d->offset);
      if (!d->size || !d->offset) status = fail(TESS_ERROR_MEMORY, "bundle: no memory for its plan");
    }
    for (i = 0; !status && i < e->inputs; i++) d->size[n++] = d->input[i].bytes;
    for (i = 0; !status && i < d->datas; i++) d->size[n++] = data_size[i];
    for (i = 0; !status && i < d->results; i++, e->at += 8) d->size[n++] = u64_at(e->at);
    free(data_size);
    TRY(status);
  }
  d->size[n++] = arena, d->size[n++] = scratch;
  for (i = 0; i < d->cells; i++) {
    int is_data = i >= d->first_data && i < d->first_data + d->datas;
    uint64_t *at = is_data ? &d->held_bytes : &d->memory;
    if (d->size[i] > MOST_ON_DEVICE || (total += d->size[i]) > MOST_ON_DEVICE) return damaged("a size is out of range");
    d->offset[i] = *at, *at += apart(d->size[i]);
  }
  TRY(read_device_values(e, &e->outputs, &d->output, 1));
  for (i = 0; i < e->outputs; i++)
    if (!in_cell(d, d->output[i].cell, d->output[i].offset, d->output[i].bytes))
      return damaged("an output lies outside of its memory");
  TRY(take_count(e, 20, &d->codes, (void **)&d->code, sizeof *d->code));
  for (i = 0; i < d->codes; i++) {
    DeviceCode *c = &d->code[i];
    TRY(take_name(e, c->name, sizeof c->name));
    TRY(take_u64(e, &c->at));
    TRY(take_u64(e, &c->bytes));
    if (c->at > code_bytes || c->bytes > code_bytes - c->at) return damaged("a kernel lies outside of the code");
  }
  TRY(read_launches(e, d));
  e->kernels = d->launches;
  return TESS_OK;
}

/* Load the code, and make the descriptors of the copy engine, whose addresses every run fills in. */
static tess_status_t load_device_code(DeviceProgram *d, const uint8_t *code) {
  uint32_t i, j;
  if (d->maps && (!cuda.cuTensorMapEncodeTiled || !cuda.cuTensorMapReplaceAddress))
    return fail(TESS_ERROR_DEVICE, "cuda: the driver has no cuTensorMapEncodeTiled; install driver 525 or newer");
  for (i = 0; i < d->codes; i++) CUDA(cuModuleLoadData, (&d->code[i].module, code + d->code[i].at));
  if (posix_memalign((void **)&d->maps_made, LINE, ((size_t)d->maps + 1) * MAP_BYTES))
    return fail(TESS_ERROR_MEMORY, "bundle: no memory for its plan");
  for (i = 0; i < d->launches; i++) {
    DeviceLaunch *l = &d->launch[i];
    size_t count = (size_t)l->parameters + 2, offset, size;
    CUDA(cuModuleGetFunction, (&l->function, d->code[l->code].module, d->code[l->code].name));
    if (l->shared > 48u << 10) CUDA(cuFuncSetAttribute, (l->function, 8, (int)l->shared));
    if (cuda.cuFuncGetParamInfo) {
      for (count = 0; count < 8192 && !cuda.cuFuncGetParamInfo(l->function, count, &offset, &size); count++) {
        const Parameter *p = &d->parameter[l->first + count];
        if (size != (count < l->parameters ? p->bytes : 8))
          return fail(TESS_ERROR_FILE, "bundle: parameter %u of kernel '%s' has %u bytes, its code wants %u", (unsigned)count,
                      l->name, count < l->parameters ? p->bytes : 8u, (unsigned)size);
        if (count == (size_t)l->parameters + MOST_ADDED) break;
      }
    }
    if (count < l->parameters || count > (size_t)l->parameters + MOST_ADDED)
      return fail(TESS_ERROR_FILE, "bundle: kernel '%s' is given %u parameters, its code has %u", l->name, l->parameters,
                  (unsigned)count);
    l->added = (uint32_t)count - l->parameters;
    for (j = 0; j < l->added; j++) { /* addresses that its compiler added: scratch of its own, or nothing */
      Parameter *p = &d->parameter[l->first + l->parameters + j];
      p->kind = !j && l->own ? POINTER : VALUE, p->cell = d->cells - 1, p->bytes = 8;
    }
    for (j = 0; j < l->parameters; j++) {
      const Parameter *p = &d->parameter[l->first + j];
      static const uint32_t ones[MAP_AXES] = {1, 1, 1, 1, 1};
      if (p->kind == BOX)
        CUDA(cuTensorMapEncodeTiled, (d->maps_made + (size_t)p->map * MAP_BYTES, (int)p->dtype, p->axes, (void *)(uintptr_t)4096,
                                      p->shape, p->strides, p->box, ones, 0, (int)p->swizzle, 2, 0));
    }
  }
  return TESS_OK;
}

static tess_status_t start_device_program(TessEntry *e, DeviceProgram *d, const uint8_t *code) {
  const uint8_t *weights = e->bundle->weights->data + e->bundle->weights_at;
  uint32_t i;
  CUDA(cuStreamCreate, (&d->stream, 1u));
  TRY(load_device_code(d, code));
  TRY(device_alloc(d->held_bytes, &d->held));
  for (i = 0; i < d->datas; i++)
    TRY(device_copy((void *)(uintptr_t)(d->held + d->offset[d->first_data + i]), d->device, weights + d->data_at[i], 0,
                    d->size[d->first_data + i], d->stream));
  return wait_for(d->stream);
}

static tess_status_t device_capability(uint32_t device, uint32_t *out) {
  int handle, major = 0, minor = 0;
  CUDA(cuDeviceGet, (&handle, (int)(device - TESS_DEVICE_CUDA)));
  CUDA(cuDeviceGetAttribute, (&major, 75, handle));
  CUDA(cuDeviceGetAttribute, (&minor, 76, handle));
  *out = (uint32_t)(10 * major + minor);
  return TESS_OK;
}

/* Copy a section, and verify the copy: the file may change while it is mapped. */
static tess_status_t open_on_device(TessBundle *b, const char *name, uint32_t device, TessEntry *e) {
  const Section *plan = NULL, *code = NULL;
  DeviceProgram *d = calloc(1, sizeof *d);
  char key[128];
  uint32_t capability = 0, i;
  if (!d) return fail(TESS_ERROR_MEMORY, "tess_entry_open_on: no memory");
  e->device = d;
  TRY(device_capability(device, &capability));
  for (i = 0; i < 2 && !(plan && code); i++) {
    snprintf(e->target, sizeof e->target, "cuda:sm_%u%s", capability, i ? "a" : "");
    snprintf(key, sizeof key, "launches/%.64s/%s", name, e->target);
    plan = section(b, key);
    snprintf(key, sizeof key, "binary/%.64s/%s", name, e->target);
    code = section(b, key);
  }
  if (!plan || !code)
    return fail(TESS_ERROR_TARGET, "tess_entry_open_on: '%.64s' has no code for cuda:sm_%u", name, capability);
  d->copy = malloc(plan->size + code->size + LINE);
  if (!d->copy) return fail(TESS_ERROR_MEMORY, "tess_entry_open_on: no memory");
  TRY(copy_section(b, code, d->copy));
  TRY(copy_section(b, plan, d->copy + code->size));
  e->at = d->copy + code->size, e->end = e->at + plan->size;
  d->capability = capability, e->arch = TESS_ARCH_CUDA + capability;
  TRY(read_device_plan(e, d, code->size));
  if (b->flags & TESS_OPEN_UNVERIFIED) return TESS_OK; /* it is looked at, and not loaded */
  d->device = device;
  return start_device_program(e, d, d->copy);
}

tess_status_t tess_entry_open_on(TessBundle *b, const char *name, uint32_t device, TessEntry **out) {
  char key[128], own[NAME_BYTES];
  tess_status_t status;
  TessEntry *e;
  if (!device) return tess_entry_open(b, name, out);
  if (!b || !out) return fail(TESS_ERROR_ARGUMENT, "tess_entry_open_on: bundle or out is null");
  *out = NULL;
  if (!name) name = only_entry(b, own, sizeof own);
  if (!name) return fail(TESS_ERROR_NAME, "tess_entry_open_on: the bundle has not one entry point: say which");
  snprintf(key, sizeof key, "graph/%.64s", name);
  if (!section(b, key)) return fail(TESS_ERROR_NAME, "tess_entry_open_on: there is no entry point '%.64s'", name);
  TRY(enter_device(device));
  e = calloc(1, sizeof *e);
  if (!e) {
    leave_device();
    return fail(TESS_ERROR_MEMORY, "tess_entry_open_on: no memory");
  }
  pthread_mutex_init(&e->lock, NULL);
  e->bundle = b;
  snprintf(e->name, sizeof e->name, "%.39s", name);
  status = open_on_device(b, name, device, e);
  leave_device();
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

uint32_t tess_entry_device(const TessEntry *e) { return e && e->device ? e->device->device : TESS_DEVICE_CPU; }

static void describe_on_device(const TessEntry *e, int output, uint32_t i, TessValueInfo *out) {
  const DeviceValue *v = output ? &e->device->output[i] : &e->device->input[i];
  memset(out, 0, sizeof *out);
  out->size = sizeof *out, out->version = TESS_ABI_VERSION, out->dtype = v->dtype, out->rank = v->rank;
  memcpy(out->shape, v->shape, sizeof out->shape);
  memcpy(out->name, v->name, sizeof out->name);
}

static void kernel_on_device(const TessEntry *e, uint32_t i, TessKernelDesc *out) {
  const DeviceLaunch *l = &e->device->launch[i];
  memset(out, 0, sizeof *out);
  out->size = sizeof *out, out->version = TESS_ABI_VERSION, out->arch = e->arch, out->num_tiles = 1;
  memcpy(out->name, l->name, sizeof out->name);
  out->tiles[0].size = sizeof out->tiles[0], out->tiles[0].version = TESS_ABI_VERSION;
  out->tiles[0].warps = (l->threads + 31) / 32, out->tiles[0].instances = l->blocks;
}

static tess_status_t fits_value(const TessEntry *e, const char *what, uint32_t i, const DeviceValue *v, const TessTensorDesc *t) {
  TRY(tess_tensor_validate(t));
  if (t->dtype != v->dtype || t->rank != v->rank)
    return fail(TESS_ERROR_TYPE, "%s: %s %u '%s' is %s of rank %u, expected %s of rank %u", e->name, what, i, v->name,
                dtype_name(t->dtype), t->rank, dtype_name(v->dtype), v->rank);
  if (memcmp(t->shape, v->shape, v->rank * sizeof *t->shape))
    return fail(TESS_ERROR_SHAPE, "%s: %s %u '%s' has another shape than the code was made for", e->name, what, i, v->name);
  if (t->device && t->device != e->device->device)
    return fail(TESS_ERROR_DEVICE, "%s: %s %u lies on device %u, expected 0 or %u", e->name, what, i, t->device,
                e->device->device);
  return TESS_OK;
}

static tess_status_t plan_on_device(const TessEntry *e, const TessTensorDesc *inputs, uint32_t count, TessTensorDesc *outputs,
                                    uint64_t *bytes) {
  uint32_t i;
  if (count != e->inputs || (count && !inputs))
    return fail(TESS_ERROR_ARGUMENT, "%s: got %u inputs, expected %u", e->name, count, e->inputs);
  for (i = 0; i < count; i++) TRY(fits_value(e, "input", i, &e->device->input[i], &inputs[i]));
  for (i = 0; i < e->outputs; i++) {
    const DeviceValue *v = &e->device->output[i];
    TRY(tess_tensor_init(&outputs[i], v->dtype, v->rank, v->shape, NULL));
  }
  if (bytes) *bytes = e->device->memory;
  return TESS_OK;
}

static tess_status_t take_device_run(DeviceProgram *d, uint32_t outputs, void *stream, DeviceRun **out) {
  DeviceRun **at, *r;
  uint64_t head = line_up(sizeof *r), address = line_up(((uint64_t)d->parameters + 1) * 8), made = line_up(8 * (uint64_t)outputs);
  void *p = NULL;
  tess_status_t status;
  for (at = &d->idle; (r = *at); at = &r->next)
    if (r->stream == stream) { /* on one stream, a run waits for the last that had its memory */
      *at = r->next, *out = r;
      return TESS_OK;
    }
  if (posix_memalign(&p, LINE, head + 2 * address + made + (uint64_t)d->maps * MAP_BYTES + 1))
    return fail(TESS_ERROR_MEMORY, "tess_entry_run: no memory for a run");
  r = p;
  memset(r, 0, sizeof *r);
  r->stream = stream;
  r->address = (Address *)(void *)((uint8_t *)p + head);
  r->list = (void **)(void *)((uint8_t *)p + head + address);
  r->made = (void **)(void *)((uint8_t *)p + head + 2 * address);
  r->maps = (uint8_t *)p + head + 2 * address + made;
  if (d->maps) memcpy(r->maps, d->maps_made, (size_t)d->maps * MAP_BYTES);
  status = device_alloc(d->memory, &r->memory);
  if (status) free(p);
  else *out = r;
  return status;
}

static Address cell_address(const DeviceProgram *d, const DeviceRun *r, const TessTensorDesc *inputs, uint32_t inputs_count,
                            uint32_t cell) {
  if (cell < inputs_count && inputs[cell].device) return (Address)(uintptr_t)inputs[cell].data;
  if (cell >= d->first_data && cell < d->first_data + d->datas) return d->held + d->offset[cell];
  return r->memory + d->offset[cell];
}

static tess_status_t send_input(const TessEntry *e, const DeviceRun *r, uint32_t i, const TessTensorDesc *t) {
  const DeviceProgram *d = e->device;
  uint32_t item = ITEM[t->dtype];
  void *to = (void *)(uintptr_t)(r->memory + d->offset[i]), *copy;
  int64_t low, high;
  tess_status_t status;
  int ordered = is_row_major(t->shape, t->strides, t->rank, item);
  if (d->size[i] && !t->data) return fail(TESS_ERROR_ARGUMENT, "%s: input %u has no data", e->name, i);
  if (reach(t->shape, t->strides, t->rank, item, &low, &high) || low < 0 || (uint64_t)high > t->bytes)
    return fail(TESS_ERROR_ARGUMENT, "%s: the strides of input %u reach beyond its memory", e->name, i);
  if (t->device) {
    if (ordered && (uintptr_t)t->data % 16 == 0) return TESS_OK;
    return fail(TESS_ERROR_ARGUMENT, "%s: input %u on the device is not row-major at a multiple of 16 bytes", e->name, i);
  }
  if (ordered || !d->size[i]) return device_copy(to, d->device, t->data, 0, d->size[i], r->stream);
  copy = malloc(d->size[i]);
  if (!copy) return fail(TESS_ERROR_MEMORY, "%s: no memory for a copy of input %u", e->name, i);
  copy_strided(copy, t->data, t->shape, t->strides, t->rank, item);
  status = device_copy(to, d->device, copy, 0, d->size[i], r->stream);
  if (!status) status = wait_for(r->stream);
  free(copy);
  return status;
}

static tess_status_t launch_all(const TessEntry *e, DeviceRun *r, const TessTensorDesc *inputs) {
  DeviceProgram *d = e->device;
  uint32_t i, j;
  for (i = 0; i < d->launches; i++) {
    const DeviceLaunch *l = &d->launch[i];
    for (j = 0; j < l->parameters + l->added; j++) {
      Parameter *p = &d->parameter[l->first + j];
      Address *at = &r->address[l->first + j];
      void **given = &r->list[l->first + j];
      if (p->kind == VALUE) {
        *given = p->value;
        continue;
      }
      *at = cell_address(d, r, inputs, e->inputs, p->cell) + p->offset;
      *given = at;
      if (p->kind == BOX) {
        *given = r->maps + (size_t)p->map * MAP_BYTES;
        CUDA(cuTensorMapReplaceAddress, (*given, (void *)(uintptr_t)*at));
      }
    }
    CUDA(cuLaunchKernel, (l->function, l->blocks, 1, 1, l->threads, 1, 1, l->shared, r->stream, r->list + l->first, NULL));
  }
  return TESS_OK;
}

/* The caller's memory of an output is checked before anything is launched. */
static tess_status_t apart_from(const TessEntry *e, const TessTensorDesc *inputs, const TessTensorDesc *outputs, uint32_t i) {
  const TessTensorDesc *t = &outputs[i];
  uint64_t bytes = e->device->output[i].bytes;
  uint32_t j;
  if (!t->data) return TESS_OK;
  TRY(fits_value(e, "output", i, &e->device->output[i], t));
  if (t->bytes < bytes || !is_row_major(t->shape, t->strides, t->rank, ITEM[t->dtype]))
    return fail(TESS_ERROR_SHAPE, "%s: output %u is not a row-major tensor of the result's shape; see tess_entry_plan", e->name, i);
  for (j = 0; j < e->inputs; j++)
    if (t->device == inputs[j].device && overlap(t->data, bytes, inputs[j].data, inputs[j].bytes))
      return fail(TESS_ERROR_ARGUMENT, "%s: output %u overlaps input %u", e->name, i, j);
  for (j = 0; j < i; j++)
    if (outputs[j].data && t->device == outputs[j].device && overlap(t->data, bytes, outputs[j].data, outputs[j].bytes))
      return fail(TESS_ERROR_ARGUMENT, "%s: output %u overlaps output %u", e->name, i, j);
  return TESS_OK;
}

static tess_status_t fetch_output(const TessEntry *e, const DeviceRun *r, uint32_t i, const TessTensorDesc *inputs,
                                  TessTensorDesc *t, int *waits) {
  const DeviceProgram *d = e->device;
  const DeviceValue *v = &d->output[i];
  Address from = cell_address(d, r, inputs, e->inputs, v->cell) + v->offset;
  if (!t->data) {
    TessTensorDesc made;
    TRY(tess_tensor_init(&made, v->dtype, v->rank, v->shape, NULL));
    TRY(tess_memory_alloc(TESS_DEVICE_CPU, v->bytes, &made.data));
    made.flags = TESS_TENSOR_OWNED;
    *t = made, r->made[i] = made.data;
  }
  if (!t->device) *waits = 1;
  return device_copy(t->data, t->device, (void *)(uintptr_t)from, d->device, v->bytes, r->stream);
}

static tess_status_t run_on_device(TessEntry *e, TessStream *stream, const TessTensorDesc *inputs, uint32_t count,
                                   TessTensorDesc *outputs, int waits) {
  DeviceProgram *d = e->device;
  DeviceRun *r = NULL;
  tess_status_t status, last;
  uint32_t i;
  if (count != e->inputs || (count && !inputs))
    return fail(TESS_ERROR_ARGUMENT, "%s: got %u inputs, expected %u", e->name, count, e->inputs);
  if (stream && stream->device != d->device)
    return fail(TESS_ERROR_DEVICE, "%s: the stream is of device %u, expected %u", e->name, stream->device, d->device);
  for (i = 0; i < count; i++) TRY(fits_value(e, "input", i, &d->input[i], &inputs[i]));
  TRY(enter_device(d->device));
  pthread_mutex_lock(&e->lock);
  status = take_device_run(d, e->outputs, stream ? stream->handle : d->stream, &r);
  pthread_mutex_unlock(&e->lock);
  if (!status && e->outputs) memset(r->made, 0, e->outputs * sizeof *r->made);
  for (i = 0; !status && i < e->outputs; i++) status = apart_from(e, inputs, outputs, i);
  for (i = 0; !status && i < count; i++) status = send_input(e, r, i, &inputs[i]);
  if (!status) status = launch_all(e, r, inputs);
  for (i = 0; !status && i < e->outputs; i++) status = fetch_output(e, r, i, inputs, &outputs[i], &waits);
  if (r && (waits || status)) {
    last = wait_for(r->stream);
    if (!status) status = last;
    for (i = 0; status && i < e->outputs; i++)
      if (r->made[i]) tess_tensor_free(&outputs[i]);
  }
  if (r) {
    pthread_mutex_lock(&e->lock);
    r->next = d->idle, d->idle = r;
    pthread_mutex_unlock(&e->lock);
  }
  leave_device();
  return status;
}

tess_status_t tess_entry_run_on(TessEntry *e, TessStream *stream, const TessTensorDesc *inputs, uint32_t input_count,
                                TessTensorDesc *outputs, uint32_t output_count) {
  if (!e || !e->device) {
    if (e && stream && stream->device)
      return fail(TESS_ERROR_DEVICE, "%s: the stream is of device %u, expected 0", e->name, stream->device);
    return tess_entry_run(e, inputs, input_count, outputs, output_count);
  }
  if (output_count != e->outputs || (output_count && !outputs))
    return fail(TESS_ERROR_ARGUMENT, "%s: room for %u outputs, expected %u", e->name, output_count, e->outputs);
  if (e->bundle->flags & TESS_OPEN_UNVERIFIED)
    return fail(TESS_ERROR_DIGEST, "%s: the bundle was opened unverified; what is not verified is not run", e->name);
  TRY(allow(e->name, e->numerics));
  return run_on_device(e, stream, inputs, input_count, outputs, 0);
}

/* Operators ----------------------------------------------------------------------------------------------------- */

typedef struct {
  double re, im;
} Complex;
enum { MOST_DENSE = 8192, MOST_DEEP = 256 };
static const int64_t MOST_VECTOR = (int64_t)1 << 40;

static Complex times(Complex a, Complex b) {
  Complex c = {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
  return c;
}
static Complex over(Complex a, Complex b) { /* Smith's way: no square of a large number */
  double r, d;
  Complex c;
  if ((b.re < 0 ? -b.re : b.re) >= (b.im < 0 ? -b.im : b.im)) {
    r = b.im / b.re, d = b.re + b.im * r;
    c.re = (a.re + a.im * r) / d, c.im = (a.im - a.re * r) / d;
  } else {
    r = b.re / b.im, d = b.re * r + b.im;
    c.re = (a.re * r + a.im) / d, c.im = (a.im * r - a.re) / d;
  }
  return c;
}
static Complex plus(Complex a, Complex b) { return a.re += b.re, a.im += b.im, a; }
static Complex minus(Complex a, Complex b) { return a.re -= b.re, a.im -= b.im, a; }
static Complex conjugate(Complex a, int really) { return a.im = really ? -a.im : a.im, a; }

static int is_number(uint32_t dtype) { return dtype >= TESS_F32 && dtype <= TESS_C128; }
static int is_place(uint32_t dtype) { return dtype == TESS_I32 || dtype == TESS_I64; }

static Complex number_at(const TessTensorDesc *t, int64_t i, int64_t j, int64_t k) {
  const uint8_t *p = (const uint8_t *)t->data + i * t->strides[0];
  Complex out = {0, 0};
  float f[2];
  double d[2];
  if (t->rank > 1) p += j * t->strides[1];
  if (t->rank > 2) p += k * t->strides[2];
  if (t->dtype == TESS_F32 || t->dtype == TESS_C64) {
    memcpy(f, p, t->dtype == TESS_F32 ? 4 : 8);
    out.re = f[0], out.im = t->dtype == TESS_F32 ? 0 : f[1];
  } else {
    memcpy(d, p, t->dtype == TESS_F64 ? 8 : 16);
    out.re = d[0], out.im = t->dtype == TESS_F64 ? 0 : d[1];
  }
  return out;
}

static int64_t place_at(const TessTensorDesc *t, int64_t i) {
  const uint8_t *p = (const uint8_t *)t->data + i * t->strides[0];
  int64_t wide;
  int32_t narrow;
  if (t->dtype == TESS_I64) return memcpy(&wide, p, 8), wide;
  return memcpy(&narrow, p, 4), narrow;
}

static int inside(const TessTensorDesc *t) {
  int64_t low, high;
  return !reach(t->shape, t->strides, t->rank, ITEM[t->dtype], &low, &high) && low >= 0 && (uint64_t)high <= t->bytes;
}

/* The sizes and the values of a payload that is known to be tensors of the right rank. */
static tess_status_t check_operator(const TessOperatorDesc *o) {
  static const char *const other = "operator: payload %d has another shape, dtype or memory than its operator";
  const TessTensorDesc *p = o->payload;
  int i, places = o->tag == TESS_TAG_PERMUTATION;
  int64_t j, n = o->rows, m = o->columns;
  if (n > MOST_VECTOR || m > MOST_VECTOR) return fail(TESS_ERROR_SHAPE, "operator: it is too large");
  for (i = 0; i < 3 && p[i].size; i++) {
    int is_index = places || (o->repr == TESS_OP_BLOCKSPARSE && i < 2);
    if (!inside(&p[i]) || (is_index ? !is_place(p[i].dtype) : !is_number(p[i].dtype)) || p[i].device)
      return fail(TESS_ERROR_TYPE, other, i);
  }
  if (o->repr == TESS_OP_FACTOR) {
    if (p[0].shape[0] != n || p[0].shape[1] != p[1].shape[0] || p[2].shape[0] != p[1].shape[0] || p[2].shape[1] != m)
      return fail(TESS_ERROR_SHAPE, "operator: U, S and V* do not make a %lld by %lld operator", (long long)n, (long long)m);
  }
  if (o->repr == TESS_OP_IMPLICIT && o->tag != TESS_TAG_ZERO && n != m)
    return fail(TESS_ERROR_SHAPE, "operator: it is %lld by %lld, expected square", (long long)n, (long long)m);
  if (o->repr == TESS_OP_IMPLICIT && o->tag != TESS_TAG_FFT && p[0].size && p[0].shape[0] != n)
    return fail(TESS_ERROR_SHAPE, other, 0);
  for (j = 0; places && j < n; j++)
    if (place_at(&p[0], j) < 0 || place_at(&p[0], j) >= n) return fail(TESS_ERROR_SHAPE, "operator: a place is out of range");
  if (o->repr == TESS_OP_BLOCKSPARSE) {
    int64_t tall = p[2].shape[1], wide = p[2].shape[2], blocks = p[2].shape[0], rows = p[0].shape[0] - 1;
    if (tall < 1 || wide < 1 || rows < 0 || rows > n / tall || rows * tall != n || m % wide || p[1].shape[0] != blocks)
      return fail(TESS_ERROR_SHAPE, "operator: its blocks do not tile it");
    for (j = 0; j <= rows; j++)
      if (place_at(&p[0], j) < (j ? place_at(&p[0], j - 1) : 0) || (!j && place_at(&p[0], j)) ||
          (j == rows ? place_at(&p[0], j) != blocks : place_at(&p[0], j) > blocks))
        return fail(TESS_ERROR_SHAPE, "operator: its row pointers are wrong");
    for (j = 0; j < blocks; j++)
      if (place_at(&p[1], j) < 0 || place_at(&p[1], j) >= m / wide) return fail(TESS_ERROR_SHAPE, "operator: a place is out of range");
  }
  return TESS_OK;
}

/* e^(-2 pi i k / n), by halves of a turn so that exact values are exact. */
static Complex turn(uint64_t k, uint64_t n) {
  static const double pi = 3.14159265358979323846;
  double x, term, s = 0, c = 0;
  uint64_t eighth;
  int i;
  Complex out;
  k %= n;
  eighth = (uint64_t)(((unsigned __int128)k * 8) / n);
  /* Reduce to the nearest quarter; what is left is at most an eighth of a turn. */
  {
    uint64_t quarter = (eighth + 1) / 2;
    double rest = ((double)k * 4.0 - (double)quarter * (double)n) / (4.0 * (double)n) * 2.0 * pi;
    for (i = 0, term = 1, x = rest; i < 30; i++) {
      if (i & 1) s += (i & 2) ? -term : term;
      else c += (i & 2) ? -term : term;
      term = term * x / (double)(i + 1);
    }
    quarter &= 3;
    out.re = quarter == 0 ? c : quarter == 1 ? -s : quarter == 2 ? -c : s;
    out.im = quarter == 0 ? -s : quarter == 1 ? -c : quarter == 2 ? s : c;
  }
  return out;
}

/* The discrete Fourier transform of every step-th element, halves first; sizes that are odd are summed. */
static void transform(const Complex *x, Complex *y, uint64_t n, uint64_t step, int back, Complex *room) {
  uint64_t i, j;
  if (n % 2 || n < 2) {
    for (i = 0; i < n; i++) {
      Complex sum = {0, 0};
      for (j = 0; j < n; j++)
        sum = plus(sum, times(conjugate(turn((uint64_t)((unsigned __int128)i * j % n), n), back), x[j * step]));
      y[i] = sum;
    }
    return;
  }
  transform(x, room, n / 2, 2 * step, back, y);
  transform(x + step, room + n / 2, n / 2, 2 * step, back, y + n / 2);
  for (i = 0; i < n / 2; i++) {
    Complex odd = times(conjugate(turn(i, n), back), room[n / 2 + i]);
    y[i] = plus(room[i], odd), y[n / 2 + i] = minus(room[i], odd);
  }
}

typedef struct {
  const TessOperatorGraph *graph;
  const int64_t (*sizes)[2]; /* rows and columns of every node */
} Algebra;

static tess_status_t apply_node(const Algebra *g, uint32_t node, int adjoint, const Complex *x, Complex *y);
static tess_status_t solve_node(const Algebra *g, uint32_t node, int adjoint, const Complex *b, Complex *x);

static tess_status_t vector_of(int64_t n, Complex **out) {
  *out = calloc((size_t)n + 1, sizeof **out);
  return *out ? TESS_OK : fail(TESS_ERROR_MEMORY, "operator: no memory for %lld numbers", (long long)n);
}

static tess_status_t apply_leaf(const TessOperatorDesc *o, int adjoint, const Complex *x, Complex *y) {
  const TessTensorDesc *p = o->payload;
  int64_t n = adjoint ? o->columns : o->rows, m = adjoint ? o->rows : o->columns, i, j, k;
  Complex *room;
  memset(y, 0, (size_t)n * sizeof *y);
  if (o->repr == TESS_OP_DENSE) {
    for (i = 0; i < n; i++)
      for (j = 0; j < m; j++)
        y[i] = plus(y[i], times(conjugate(adjoint ? number_at(p, j, i, 0) : number_at(p, i, j, 0), adjoint), x[j]));
  } else if (o->repr == TESS_OP_FACTOR) {
    int64_t rank = p[1].shape[0];
    TRY(vector_of(rank, &room));
    for (k = 0; k < rank; k++) {
      for (j = 0; j < m; j++)
        room[k] = plus(room[k], times(conjugate(adjoint ? number_at(p, j, k, 0) : number_at(p + 2, k, j, 0), adjoint), x[j]));
      room[k] = times(room[k], conjugate(number_at(p + 1, k, 0, 0), adjoint));
    }
    for (i = 0; i < n; i++)
      for (k = 0; k < rank; k++)
        y[i] = plus(y[i], times(conjugate(adjoint ? number_at(p + 2, k, i, 0) : number_at(p, i, k, 0), adjoint), room[k]));
    free(room);
  } else if (o->repr == TESS_OP_BLOCKSPARSE) {
    int64_t tall = p[2].shape[1], wide = p[2].shape[2], row, block;
    for (row = 0; row + 1 < p[0].shape[0]; row++)
      for (block = place_at(&p[0], row); block < place_at(&p[0], row + 1); block++)
        for (i = 0; i < tall; i++)
          for (j = 0; j < wide; j++) {
            int64_t r = row * tall + i, c = place_at(&p[1], block) * wide + j;
            Complex a = conjugate(number_at(&p[2], block, i, j), adjoint);
            if (adjoint) y[c] = plus(y[c], times(a, x[r]));
            else y[r] = plus(y[r], times(a, x[c]));
          }
  } else if (o->tag == TESS_TAG_IDENTITY) {
    memcpy(y, x, (size_t)n * sizeof *y);
  } else if (o->tag == TESS_TAG_DIAGONAL) {
    for (i = 0; i < n; i++) y[i] = times(conjugate(number_at(p, i, 0, 0), adjoint), x[i]);
  } else if (o->tag == TESS_TAG_PERMUTATION) {
    for (i = 0; i < n; i++)
      if (adjoint) y[place_at(p, i)] = plus(y[place_at(p, i)], x[i]);
      else y[i] = x[place_at(p, i)];
  } else if (o->tag == TESS_TAG_CIRCULANT) {
    for (i = 0; i < n; i++)
      for (j = 0; j < n; j++)
        y[i] = plus(y[i], times(conjugate(number_at(p, adjoint ? (j - i + n) % n : (i - j + n) % n, 0, 0), adjoint), x[j]));
  } else if (o->tag == TESS_TAG_FFT && n) {
    TRY(vector_of(n, &room));
    transform(x, y, (uint64_t)n, 1, adjoint, room);
    free(room);
  }
  return TESS_OK;
}

/* Do something to every row of a matrix, or to every column. */
typedef tess_status_t (*Does)(const Algebra *, uint32_t, int, const Complex *, Complex *);

static tess_status_t both_sides(const Algebra *g, Does does, uint32_t a, uint32_t b, const int64_t in[2], const int64_t out[2],
                                int adjoint, const Complex *x, Complex *y) {
  Complex *rows, *column, *made;
  int64_t i, j;
  tess_status_t status = TESS_OK;
  TRY(vector_of(in[0] * out[1] + in[0] + out[0], &rows));
  column = rows + in[0] * out[1], made = column + in[0];
  for (i = 0; !status && i < in[0]; i++) status = does(g, b, adjoint, x + i * in[1], rows + i * out[1]);
  for (j = 0; !status && j < out[1]; j++) {
    for (i = 0; i < in[0]; i++) column[i] = rows[i * out[1] + j];
    status = does(g, a, adjoint, column, made);
    for (i = 0; !status && i < out[0]; i++) y[i * out[1] + j] = made[i];
  }
  free(rows);
  return status;
}

static tess_status_t kronecker(const Algebra *g, Does does, const uint32_t *of, int turned, int adjoint, const Complex *x,
                               Complex *y) {
  int64_t in[2], out[2];
  int i;
  for (i = 0; i < 2; i++) in[i] = g->sizes[of[i]][!turned], out[i] = g->sizes[of[i]][turned];
  return both_sides(g, does, of[0], of[1], in, out, adjoint, x, y);
}

/* One operator after another, as a product or its adjoint or its inverse needs them. */
static tess_status_t chain(const Algebra *g, Does does, const uint32_t *of, uint32_t count, int backwards, int turned, int adjoint,
                           const Complex *x, Complex *y) {
  Complex *now = NULL, *next;
  uint32_t i;
  tess_status_t status = TESS_OK;
  for (i = 0; i < count; i++) {
    uint32_t node = of[backwards ? count - 1 - i : i];
    int64_t n = g->sizes[node][turned];
    status = vector_of(n, &next);
    if (!status) status = does(g, node, adjoint, now ? now : x, next);
    free(now);
    now = next;
    if (status) break;
    if (i + 1 == count) memcpy(y, now, (size_t)n * sizeof *y);
  }
  free(now);
  return status;
}

static tess_status_t blocks(const Algebra *g, Does does, const uint32_t *of, uint32_t count, int turned, int adjoint,
                            const Complex *x, Complex *y) {
  uint32_t i;
  for (i = 0; i < count; i++) {
    TRY(does(g, of[i], adjoint, x, y));
    x += g->sizes[of[i]][!turned], y += g->sizes[of[i]][turned];
  }
  return TESS_OK;
}

static tess_status_t apply_node(const Algebra *g, uint32_t node, int adjoint, const Complex *x, Complex *y) {
  const TessOperatorNode *v = &g->graph->nodes[node];
  const uint32_t *of = g->graph->operands + v->first;
  int64_t n = g->sizes[node][adjoint], i;
  Complex s, *part;
  uint32_t k;
  s.re = v->scalar[0], s.im = adjoint ? -v->scalar[1] : v->scalar[1];
  switch (v->kind) {
    case TESS_NODE_LEAF: return apply_leaf(&g->graph->leaves[v->leaf], adjoint, x, y);
    case TESS_NODE_COMPOSE: return chain(g, apply_node, of, v->count, !adjoint, adjoint, adjoint, x, y);
    case TESS_NODE_ADJOINT: return apply_node(g, of[0], !adjoint, x, y);
    case TESS_NODE_KRONECKER: return kronecker(g, apply_node, of, adjoint, adjoint, x, y);
    case TESS_NODE_DIRECT_SUM: return blocks(g, apply_node, of, v->count, adjoint, adjoint, x, y);
    case TESS_NODE_INVERSE: return solve_node(g, of[0], adjoint, x, y);
    case TESS_NODE_RESOLVENT: return solve_node(g, node, 2 + adjoint, x, y);
    case TESS_NODE_SCALE:
      TRY(apply_node(g, of[0], adjoint, x, y));
      for (i = 0; i < n; i++) y[i] = times(s, y[i]);
      return TESS_OK;
    default: break;
  }
  TRY(vector_of(n, &part)); /* a sum */
  memset(y, 0, (size_t)n * sizeof *y);
  for (k = 0; k < v->count; k++) {
    tess_status_t status = apply_node(g, of[k], adjoint, x, part);
    if (status) return free(part), status;
    for (i = 0; i < n; i++) y[i] = plus(y[i], part[i]);
  }
  free(part);
  return TESS_OK;
}

/* Gauss's elimination with partial pivoting on the matrix of an operator, less s on the diagonal. */
static tess_status_t eliminate(const Algebra *g, uint32_t node, int adjoint, Complex s, const Complex *b, Complex *x) {
  int64_t n = g->sizes[node][0], i, j, k;
  Complex *a, *unit;
  tess_status_t status;
  if (n > MOST_DENSE) return fail(TESS_ERROR_SHAPE, "operator: %lld rows are too many to solve without structure", (long long)n);
  TRY(vector_of(n * n + 2 * n, &a));
  unit = a + n * n;
  for (j = 0, status = TESS_OK; !status && j < n; j++) { /* column by column; held as rows */
    memset(unit, 0, (size_t)n * sizeof *unit);
    unit[j].re = 1;
    status = apply_node(g, node, adjoint, unit, unit + n);
    for (i = 0; !status && i < n; i++) a[i * n + j] = i == j ? minus(unit[n + i], s) : unit[n + i];
  }
  if (n) memcpy(x, b, (size_t)n * sizeof *x);
  for (k = 0; !status && k < n; k++) {
    int64_t best = k;
    double most = -1;
    for (i = k; i < n; i++) {
      double size = a[i * n + k].re * a[i * n + k].re + a[i * n + k].im * a[i * n + k].im;
      if (size > most) most = size, best = i;
    }
    if (!(most > 0)) {
      status = fail(TESS_ERROR_SINGULAR, "operator: it is singular: column %lld has no pivot", (long long)k);
      break;
    }
    if (best != k) {
      Complex t;
      for (j = k; j < n; j++) t = a[k * n + j], a[k * n + j] = a[best * n + j], a[best * n + j] = t;
      t = x[k], x[k] = x[best], x[best] = t;
    }
    for (i = k + 1; i < n; i++) {
      Complex f = over(a[i * n + k], a[k * n + k]);
      if (f.re == 0 && f.im == 0) continue;
      for (j = k + 1; j < n; j++) a[i * n + j] = minus(a[i * n + j], times(f, a[k * n + j]));
      x[i] = minus(x[i], times(f, x[k]));
    }
  }
  for (k = n - 1; !status && k >= 0; k--) {
    for (j = k + 1; j < n; j++) x[k] = minus(x[k], times(a[k * n + j], x[j]));
    x[k] = over(x[k], a[k * n + k]);
  }
  free(a);
  return status;
}

static tess_status_t solve_leaf(const Algebra *g, uint32_t node, int adjoint, const Complex *b, Complex *x) {
  const TessOperatorDesc *o = &g->graph->leaves[g->graph->nodes[node].leaf];
  static const Complex none = {0, 0};
  int64_t i;
  if (o->repr == TESS_OP_IMPLICIT && o->tag == TESS_TAG_DIAGONAL) {
    for (i = 0; i < o->rows; i++) {
      Complex d = conjugate(number_at(o->payload, i, 0, 0), adjoint);
      if (d.re == 0 && d.im == 0) return fail(TESS_ERROR_SINGULAR, "operator: it is singular: element %lld is 0", (long long)i);
      x[i] = over(b[i], d);
    }
    return TESS_OK;
  }
  if (o->repr == TESS_OP_IMPLICIT && o->tag == TESS_TAG_FFT) {
    TRY(apply_leaf(o, !adjoint, b, x));
    for (i = 0; i < o->rows; i++) x[i].re /= (double)o->rows, x[i].im /= (double)o->rows;
    return TESS_OK;
  }
  if (o->flags & TESS_OP_UNITARY || (o->repr == TESS_OP_IMPLICIT && (o->tag == TESS_TAG_IDENTITY || o->tag == TESS_TAG_PERMUTATION)))
    return apply_leaf(o, !adjoint, b, x);
  return eliminate(g, node, adjoint, none, b, x);
}

/* The x with A x = b; `adjoint` of 2 and 3: with (s I - A) x = b and its adjoint, where the node is that resolvent. */
static tess_status_t solve_node(const Algebra *g, uint32_t node, int adjoint, const Complex *b, Complex *x) {
  const TessOperatorNode *v = &g->graph->nodes[node];
  const uint32_t *of = g->graph->operands + v->first;
  static const Complex none = {0, 0};
  int64_t n = g->sizes[node][0], i;
  Complex s;
  s.re = v->scalar[0], s.im = adjoint & 1 ? -v->scalar[1] : v->scalar[1];
  if (adjoint > 1) {
    TRY(eliminate(g, of[0], adjoint & 1, s, b, x));
    for (i = 0; i < n; i++) x[i].re = -x[i].re, x[i].im = -x[i].im;
    return TESS_OK;
  }
  if (g->sizes[node][0] != g->sizes[node][1])
    return fail(TESS_ERROR_SHAPE, "operator: it is %lld by %lld, expected square", (long long)g->sizes[node][0],
                (long long)g->sizes[node][1]);
  switch (v->kind) {
    case TESS_NODE_LEAF: return solve_leaf(g, node, adjoint, b, x);
    case TESS_NODE_ADJOINT: return solve_node(g, of[0], !adjoint, b, x);
    case TESS_NODE_INVERSE: return apply_node(g, of[0], adjoint, b, x);
    case TESS_NODE_COMPOSE:
      for (i = 0; i < (int64_t)v->count; i++)
        if (g->sizes[of[i]][0] != g->sizes[of[i]][1]) return eliminate(g, node, adjoint, none, b, x);
      return chain(g, solve_node, of, v->count, adjoint, 0, adjoint, b, x);
    case TESS_NODE_KRONECKER:
    case TESS_NODE_DIRECT_SUM:
      for (i = 0; i < (int64_t)v->count; i++)
        if (g->sizes[of[i]][0] != g->sizes[of[i]][1]) return eliminate(g, node, adjoint, none, b, x);
      if (v->kind == TESS_NODE_KRONECKER) return kronecker(g, solve_node, of, 0, adjoint, b, x);
      return blocks(g, solve_node, of, v->count, 0, adjoint, b, x);
    case TESS_NODE_SCALE:
      if (s.re == 0 && s.im == 0) return fail(TESS_ERROR_SINGULAR, "operator: it is singular: it is scaled by 0");
      TRY(solve_node(g, of[0], adjoint, b, x));
      for (i = 0; i < n; i++) x[i] = over(x[i], s);
      return TESS_OK;
    case TESS_NODE_RESOLVENT: /* x = (s I - A) b */
      TRY(apply_node(g, of[0], adjoint, b, x));
      for (i = 0; i < n; i++) x[i] = minus(times(s, b[i]), x[i]);
      return TESS_OK;
    default: return eliminate(g, node, adjoint, none, b, x);
  }
}

static tess_status_t node_sizes(const TessOperatorGraph *g, uint32_t i, int64_t (*sizes)[2], uint32_t *depths) {
  static const uint32_t least[9] = {0, 1, 1, 1, 1, 2, 1, 1, 1}, most[9] = {0, 64, 64, 1, 1, 2, 64, 1, 1};
  const TessOperatorNode *v = &g->nodes[i];
  const uint32_t *of;
  uint32_t k;
  if (v->size != sizeof *v || v->version != TESS_ABI_VERSION)
    return fail(TESS_ERROR_ARGUMENT, "operator graph: node %u has size %u and version %u, expected %u and %u", i, v->size, v->version,
                (unsigned)sizeof *v, TESS_ABI_VERSION);
  if (v->kind > TESS_NODE_RESOLVENT) return fail(TESS_ERROR_ARGUMENT, "operator graph: node %u has kind %u", i, v->kind);
  if (v->count < least[v->kind] || v->count > most[v->kind] || v->first > g->operand_count || v->count > g->operand_count - v->first)
    return fail(TESS_ERROR_ARGUMENT, "operator graph: node %u of kind %u has %u operands", i, v->kind, v->count);
  if (v->kind == TESS_NODE_LEAF ? v->leaf >= g->leaf_count : v->leaf)
    return fail(TESS_ERROR_ARGUMENT, "operator graph: node %u names leaf %u", i, v->leaf);
  if (v->kind != TESS_NODE_SCALE && v->kind != TESS_NODE_RESOLVENT && (v->scalar[0] != 0 || v->scalar[1] != 0))
    return fail(TESS_ERROR_ARGUMENT, "operator graph: node %u has a scalar without a meaning", i);
  if (v->scalar[0] - v->scalar[0] != 0 || v->scalar[1] - v->scalar[1] != 0)
    return fail(TESS_ERROR_ARGUMENT, "operator graph: node %u has a scalar that is not finite", i);
  if (v->kind == TESS_NODE_LEAF) {
    sizes[i][0] = g->leaves[v->leaf].rows, sizes[i][1] = g->leaves[v->leaf].columns, depths[i] = 1;
    return TESS_OK;
  }
  of = g->operands + v->first;
  for (k = 0; k < v->count; k++) {
    int64_t n, m;
    if (of[k] >= i) return fail(TESS_ERROR_ARGUMENT, "operator graph: node %u names node %u, which is not before it", i, of[k]);
    if (depths[of[k]] + 1 > depths[i]) depths[i] = depths[of[k]] + 1;
    n = sizes[of[k]][0], m = sizes[of[k]][1];
    if ((v->kind == TESS_NODE_INVERSE || v->kind == TESS_NODE_RESOLVENT) && n != m)
      return fail(TESS_ERROR_SHAPE, "operator graph: node %u inverts a %lld by %lld operator", i, (long long)n, (long long)m);
    if (!k) {
      sizes[i][0] = v->kind == TESS_NODE_ADJOINT ? m : n, sizes[i][1] = v->kind == TESS_NODE_ADJOINT ? n : m;
    } else if (v->kind == TESS_NODE_COMPOSE ? sizes[i][1] != n : v->kind == TESS_NODE_SUM && (sizes[i][0] != n || sizes[i][1] != m)) {
      return fail(TESS_ERROR_SHAPE, "operator graph: operand %u of node %u is %lld by %lld, which does not fit", k, i, (long long)n,
                  (long long)m);
    } else if (v->kind == TESS_NODE_COMPOSE) {
      sizes[i][1] = m;
    } else if (v->kind == TESS_NODE_KRONECKER) {
      if (__builtin_mul_overflow(sizes[i][0], n, &sizes[i][0]) || __builtin_mul_overflow(sizes[i][1], m, &sizes[i][1]))
        return fail(TESS_ERROR_SHAPE, "operator graph: node %u is too large", i);
    } else if (v->kind == TESS_NODE_DIRECT_SUM) {
      sizes[i][0] += n, sizes[i][1] += m;
    }
  }
  if (sizes[i][0] > MOST_VECTOR || sizes[i][1] > MOST_VECTOR || depths[i] > MOST_DEEP)
    return fail(TESS_ERROR_SHAPE, "operator graph: node %u is too large", i);
  return TESS_OK;
}

/* Check a graph; the sizes of its nodes, which the caller frees. */
static tess_status_t measure_graph(const TessOperatorGraph *g, int64_t (**out)[2]) {
  int64_t(*sizes)[2];
  uint32_t i, *depths;
  tess_status_t status = TESS_OK;
  if (!g) return fail(TESS_ERROR_ARGUMENT, "operator graph: it is null");
  if (g->size != sizeof *g || g->version != TESS_ABI_VERSION)
    return fail(TESS_ERROR_ARGUMENT, "operator graph: size %u and version %u, expected %u and %u", g->size, g->version,
                (unsigned)sizeof *g, TESS_ABI_VERSION);
  if (!g->node_count || g->node_count > TESS_MAX_NODES || g->leaf_count > TESS_MAX_NODES || g->operand_count > 64 * TESS_MAX_NODES ||
      g->root >= g->node_count || !g->nodes || (g->leaf_count && !g->leaves) || (g->operand_count && !g->operands))
    return fail(TESS_ERROR_ARGUMENT, "operator graph: %u leaves, %u nodes, %u operands and root %u are no graph", g->leaf_count,
                g->node_count, g->operand_count, g->root);
  for (i = 0; i < g->leaf_count; i++) TRY(tess_operator_validate(&g->leaves[i]));
  sizes = calloc(g->node_count, sizeof *sizes), depths = calloc(g->node_count, sizeof *depths);
  if (!sizes || !depths) status = fail(TESS_ERROR_MEMORY, "operator graph: no memory");
  for (i = 0; !status && i < g->node_count; i++) status = node_sizes(g, i, sizes, depths);
  free(depths);
  if (status) free(sizes);
  else *out = sizes;
  return status;
}

tess_status_t tess_graph_validate(const TessOperatorGraph *g, int64_t *rows, int64_t *columns) {
  int64_t(*sizes)[2];
  TRY(measure_graph(g, &sizes));
  if (rows) *rows = sizes[g->root][0];
  if (columns) *columns = sizes[g->root][1];
  free(sizes);
  return TESS_OK;
}

static tess_status_t put_number(TessTensorDesc *t, int64_t i, int64_t j, Complex z) {
  uint8_t *p = (uint8_t *)t->data + i * t->strides[0] + (t->rank > 1 ? j * t->strides[1] : 0);
  float f[2];
  double d[2];
  if ((t->dtype == TESS_F32 || t->dtype == TESS_F64) && z.im != 0)
    return fail(TESS_ERROR_TYPE, "operator: the result is complex, give it a tensor of c64 or c128");
  f[0] = (float)z.re, f[1] = (float)z.im, d[0] = z.re, d[1] = z.im;
  if (t->dtype == TESS_F32 || t->dtype == TESS_C64) memcpy(p, f, t->dtype == TESS_F32 ? 4 : 8);
  else memcpy(p, d, t->dtype == TESS_F64 ? 8 : 16);
  return TESS_OK;
}

static tess_status_t check_vector(const char *what, const TessTensorDesc *t, int64_t rows) {
  TRY(tess_tensor_validate(t));
  if (!is_number(t->dtype) || t->rank < 1 || t->rank > 2 || t->device)
    return fail(TESS_ERROR_TYPE, "operator: %s is %s of rank %u, expected f32, f64, c64 or c128 of rank 1 or 2", what,
                dtype_name(t->dtype), t->rank);
  if (t->shape[0] != rows)
    return fail(TESS_ERROR_SHAPE, "operator: %s has %lld rows, expected %lld", what, (long long)t->shape[0], (long long)rows);
  if (!inside(t) || (t->bytes && !t->data)) return fail(TESS_ERROR_ARGUMENT, "operator: %s reaches beyond its memory", what);
  return TESS_OK;
}

static tess_status_t use_graph(const TessOperatorGraph *graph, Does does, const TessTensorDesc *x, TessTensorDesc *y) {
  int64_t(*sizes)[2], n, m, i, j, columns;
  Algebra g;
  Complex *in = NULL, *out;
  tess_status_t status;
  if (promise_of(tess_numerics()) > promise_of("deterministic"))
    return fail(TESS_ERROR_NUMERICS, "operator: a C compiler may round its sums in other ways on other processors, which "
                                     "numerics 'strict' refuse; ask for 'deterministic' with tess_set_numerics");
  TRY(measure_graph(graph, &sizes));
  g.graph = graph, g.sizes = (const int64_t(*)[2])sizes;
  n = sizes[graph->root][does == solve_node], m = sizes[graph->root][does != solve_node];
  status = check_vector("x", x, m);
  if (!status) status = check_vector("y", y, n);
  if (!status && (x->rank != y->rank || (x->rank == 2 && x->shape[1] != y->shape[1])))
    status = fail(TESS_ERROR_SHAPE, "operator: x and y have other numbers of columns");
  if (!status && overlap(x->data, x->bytes, y->data, y->bytes)) status = fail(TESS_ERROR_ARGUMENT, "operator: x and y overlap");
  if (!status) status = vector_of(n + m, &in);
  columns = !status && x->rank == 2 ? x->shape[1] : 1;
  for (j = 0; !status && j < columns; j++) {
    out = in + m;
    for (i = 0; i < m; i++) in[i] = number_at(x, i, j, 0);
    status = does(&g, graph->root, 0, in, out);
    for (i = 0; !status && i < n; i++) status = put_number(y, i, j, out[i]);
  }
  free(in), free(sizes);
  return status;
}

tess_status_t tess_graph_apply(const TessOperatorGraph *g, const TessTensorDesc *x, TessTensorDesc *y) {
  return use_graph(g, apply_node, x, y);
}

tess_status_t tess_graph_solve(const TessOperatorGraph *g, const TessTensorDesc *b, TessTensorDesc *x) {
  return use_graph(g, solve_node, b, x);
}

static tess_status_t use_operator(const TessOperatorDesc *o, Does does, const TessTensorDesc *x, TessTensorDesc *y) {
  TessOperatorNode node;
  TessOperatorGraph g;
  TRY(tess_operator_validate(o));
  memset(&node, 0, sizeof node), memset(&g, 0, sizeof g);
  node.size = sizeof node, g.size = sizeof g, node.version = g.version = TESS_ABI_VERSION;
  g.leaf_count = g.node_count = 1, g.leaves = o, g.nodes = &node;
  return use_graph(&g, does, x, y);
}

tess_status_t tess_operator_apply(const TessOperatorDesc *o, const TessTensorDesc *x, TessTensorDesc *y) {
  return use_operator(o, apply_node, x, y);
}

tess_status_t tess_operator_solve(const TessOperatorDesc *o, const TessTensorDesc *b, TessTensorDesc *x) {
  return use_operator(o, solve_node, b, x);
}

tess_status_t tess_tile_validate(const TessTileDesc *t) {
  if (!t || t->size != sizeof *t || t->version != TESS_ABI_VERSION)
    return fail(TESS_ERROR_ARGUMENT, "tile: it is null, or of another size or version");
  if (t->primitive > TESS_TILE_REDUCE) return fail(TESS_ERROR_ARGUMENT, "tile: primitive %u is unknown", t->primitive);
  if (t->block[0] > 65536 || t->block[1] > 65536 || t->block[2] > 65536)
    return fail(TESS_ERROR_ARGUMENT, "tile: a block of %u by %u by %u", t->block[0], t->block[1], t->block[2]);
  if (t->warps > 64 || t->stages > 64 || t->vector > 256 || t->swizzle > 1)
    return fail(TESS_ERROR_ARGUMENT, "tile: %u warps, %u stages, vectors of %u bytes, swizzle %u", t->warps, t->stages, t->vector,
                t->swizzle);
  if (t->scratch > (uint64_t)1 << 40 || t->instances > MOST_INSTANCES) return fail(TESS_ERROR_ARGUMENT, "tile: it is too large");
  return TESS_OK;
}

tess_status_t tess_kernel_validate(const TessKernelDesc *k) {
  static const TessTileDesc none;
  uint32_t i;
  if (!k || k->size != sizeof *k || k->version != TESS_ABI_VERSION)
    return fail(TESS_ERROR_ARGUMENT, "kernel: it is null, or of another size or version");
  if (!k->arch || (k->arch > TESS_ARCH_AARCH64 && (k->arch < TESS_ARCH_CUDA || k->arch > TESS_ARCH_CUDA + 999)))
    return fail(TESS_ERROR_ARGUMENT, "kernel: arch %u is unknown", k->arch);
  if (k->num_tiles > TESS_MAX_TILES) return fail(TESS_ERROR_ARGUMENT, "kernel: %u tiles, at most %d", k->num_tiles, TESS_MAX_TILES);
  if (k->name[sizeof k->name - 1]) return fail(TESS_ERROR_ARGUMENT, "kernel: its name does not end");
  for (i = 0; i < TESS_MAX_TILES; i++) {
    if (i < k->num_tiles) TRY(tess_tile_validate(&k->tiles[i]));
    else if (memcmp(&k->tiles[i], &none, sizeof none)) return fail(TESS_ERROR_ARGUMENT, "kernel: tile %u is given beyond its number", i);
  }
  return TESS_OK;
}
