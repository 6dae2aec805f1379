/* tensor.hpp: tensors, libraries of ops and their errors in C++17, over the C interface.
 *
 *   tessera::Library library("ops.tess");               // of `tessera bundle tsol`
 *   tessera::Tensor x({2, 3}, {1.f, 2.f, 3.f, 4.f, 5.f, 6.f});
 *   tessera::Tensor y = tessera::op::softmax(x, tessera::arg("axis") = -1);
 *
 * A tensor shares its memory with its copies.  What fails throws tessera::Error, which has the status and the text.
 */
#ifndef TESSERA_TENSOR_HPP
#define TESSERA_TENSOR_HPP

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tessera/tessera.h"

namespace tessera {

/** What went wrong: a status of the C interface and its text. */
class Error : public std::runtime_error {
 public:
  Error(tess_status_t status, const std::string &text) : std::runtime_error(text), status(status) {}
  tess_status_t status;
};

inline void check(tess_status_t status) {
  if (status != TESS_OK) throw Error(status, tess_last_error());
}

namespace detail {
template <class T> struct dtype_of;
template <> struct dtype_of<bool> { static constexpr tess_dtype_t code = TESS_BOOL; };
template <> struct dtype_of<int8_t> { static constexpr tess_dtype_t code = TESS_I8; };
template <> struct dtype_of<int16_t> { static constexpr tess_dtype_t code = TESS_I16; };
template <> struct dtype_of<int32_t> { static constexpr tess_dtype_t code = TESS_I32; };
template <> struct dtype_of<int64_t> { static constexpr tess_dtype_t code = TESS_I64; };
template <> struct dtype_of<uint8_t> { static constexpr tess_dtype_t code = TESS_U8; };
template <> struct dtype_of<uint16_t> { static constexpr tess_dtype_t code = TESS_U16; };
template <> struct dtype_of<uint32_t> { static constexpr tess_dtype_t code = TESS_U32; };
template <> struct dtype_of<uint64_t> { static constexpr tess_dtype_t code = TESS_U64; };
template <> struct dtype_of<float> { static constexpr tess_dtype_t code = TESS_F32; };
template <> struct dtype_of<double> { static constexpr tess_dtype_t code = TESS_F64; };

inline const char *dtype_name(tess_dtype_t code) {
  static const char *const names[] = {"?",   "bool", "i4",     "i8",     "i16", "i32",  "i64", "u8",  "u16", "u32",
                                      "u64", "f8e4m3", "f8e5m2", "f16", "bf16", "f32", "f64", "c64", "c128", "tf32"};
  return code < sizeof names / sizeof *names ? names[code] : "?";
}
}  // namespace detail

/** A row-major tensor in this processor's memory. */
class Tensor {
 public:
  Tensor() { std::memset(&desc_, 0, sizeof desc_); }
  /** A tensor whose elements have yet to be written. */
  static Tensor empty(tess_dtype_t dtype, const std::vector<int64_t> &shape) {
    Tensor out;
    void *memory = nullptr;
    check(tess_tensor_init(&out.desc_, dtype, static_cast<uint32_t>(shape.size()), shape.data(), nullptr));
    check(tess_memory_alloc(TESS_DEVICE_CPU, out.desc_.bytes, &memory));
    out.hold(memory);
    return out;
  }
  /** A tensor of these elements. */
  template <class T> Tensor(const std::vector<int64_t> &shape, std::initializer_list<T> values)
      : Tensor(empty(detail::dtype_of<T>::code, shape)) {
    if (values.size() * sizeof(T) != desc_.bytes) throw Error(TESS_ERROR_SHAPE, "tensor: other elements than its shape has");
    if (values.size()) std::memcpy(desc_.data, values.begin(), desc_.bytes);
  }
  template <class T> Tensor(const std::vector<int64_t> &shape, const T *values)
      : Tensor(empty(detail::dtype_of<T>::code, shape)) {
    if (desc_.bytes) std::memcpy(desc_.data, values, desc_.bytes);
  }
  /** A tensor that takes over what the C interface made. */
  explicit Tensor(TessTensorDesc made) : desc_(made) { hold(made.data); }

  tess_dtype_t dtype() const { return desc_.dtype; }
  uint32_t rank() const { return desc_.rank; }
  std::vector<int64_t> shape() const { return std::vector<int64_t>(desc_.shape, desc_.shape + desc_.rank); }
  uint64_t bytes() const { return desc_.bytes; }
  int64_t elements() const {
    int64_t n = 1;
    for (uint32_t i = 0; i < desc_.rank; i++) n *= desc_.shape[i];
    return n;
  }
  void *data() { return desc_.data; }
  const void *data() const { return desc_.data; }
  template <class T> T *as() {
    if (detail::dtype_of<T>::code != desc_.dtype) throw Error(TESS_ERROR_TYPE, "tensor: it has another dtype");
    return static_cast<T *>(desc_.data);
  }
  template <class T> const T *as() const { return const_cast<Tensor *>(this)->as<T>(); }
  const TessTensorDesc &desc() const { return desc_; }
  /** The same elements in another shape, and the same memory. */
  Tensor reshaped(const std::vector<int64_t> &shape) const {
    Tensor out;
    check(tess_tensor_init(&out.desc_, desc_.dtype, static_cast<uint32_t>(shape.size()), shape.data(), desc_.data));
    if (out.desc_.bytes != desc_.bytes) throw Error(TESS_ERROR_SHAPE, "tensor: reshaped to another number of elements");
    out.memory_ = memory_;
    return out;
  }

 private:
  void hold(void *memory) {
    desc_.data = memory;
    desc_.flags = 0;
    memory_ = std::shared_ptr<void>(memory, [](void *p) { tess_memory_free(TESS_DEVICE_CPU, p); });
  }
  TessTensorDesc desc_;
  std::shared_ptr<void> memory_;
};

/** What an op gives: a tensor, or several of them. */
class Result {
 public:
  explicit Result(std::vector<Tensor> made) : made_(std::move(made)) {}
  operator const Tensor &() const {
    if (made_.size() != 1) throw Error(TESS_ERROR_TYPE, "result: it is " + std::to_string(made_.size()) + " tensors, say which");
    return made_[0];
  }
  const Tensor &operator[](size_t i) const { return made_.at(i); }
  size_t size() const { return made_.size(); }

 private:
  std::vector<Tensor> made_;
};

/** An argument that is no tensor, by its name: arg("axis") = -1. */
struct Param {
  std::string name, text;
};
class arg {
 public:
  explicit arg(std::string name) : name_(std::move(name)) {}
  Param operator=(bool x) const { return {name_, x ? "True" : "False"}; }
  Param operator=(int x) const { return {name_, std::to_string(x)}; }
  Param operator=(int64_t x) const { return {name_, std::to_string(x)}; }
  Param operator=(const char *x) const { return {name_, std::string("'") + x + "'"}; }
  Param operator=(double x) const {
    char text[40];
    for (int digits = 1; digits < 18; digits++) { /* the shortest that is this number */
      double back = 0;
      std::snprintf(text, sizeof text, "%.*g", digits, x);
      if (std::sscanf(text, "%lf", &back) == 1 && back == x) break;
    }
    if (!std::strpbrk(text, ".ein")) std::strcat(text, ".0");
    return {name_, text};
  }
  Param operator=(std::initializer_list<int64_t> xs) const {
    std::string text;
    for (int64_t x : xs) text += (text.empty() ? "(" : ",") + std::to_string(x);
    return {name_, (text.empty() ? "(" : text) + (xs.size() == 1 ? ",)" : ")")};
  }

 private:
  std::string name_;
};

/** An entry point of any bundle, which its bundle outlives. */
class Entry {
 public:
  Entry() = default;
  explicit Entry(TessEntry *entry) : entry_(entry) {}
  Result operator()(const std::vector<Tensor> &inputs) const {
    std::vector<TessTensorDesc> in, out(tess_entry_output_count(entry_));
    std::vector<Tensor> made;
    for (const Tensor &x : inputs) in.push_back(x.desc());
    for (TessTensorDesc &t : out) std::memset(&t, 0, sizeof t);
    check(tess_entry_run(entry_, in.data(), static_cast<uint32_t>(in.size()), out.data(), static_cast<uint32_t>(out.size())));
    for (const TessTensorDesc &t : out) made.emplace_back(t);
    return Result(std::move(made));
  }
  TessEntry *handle() const { return entry_; }

 private:
  TessEntry *entry_ = nullptr;
};

/** A bundle, closed with its last owner. */
class Bundle {
 public:
  explicit Bundle(const std::string &path, uint32_t flags = 0) {
    TessBundle *made = nullptr;
    check(tess_bundle_open(path.c_str(), flags, &made));
    bundle_ = std::shared_ptr<TessBundle>(made, tess_bundle_close);
  }
  Entry entry(const char *name = nullptr) const {
    TessEntry *made = nullptr;
    check(tess_entry_open(bundle_.get(), name, &made));
    return Entry(made);
  }

 private:
  std::shared_ptr<TessBundle> bundle_;
};

/** A library of ops; the newest that lives is the one that op:: uses. */
class Library {
 public:
  explicit Library(const std::string &path) : bundle_(path), before_(current()) { current() = this; }
  Library(const Library &) = delete;
  Library &operator=(const Library &) = delete;
  ~Library() {
    if (current() == this) current() = before_;
  }
  static Library *&current() {
    static Library *library = nullptr;
    return library;
  }
  /** The name of the entry point of a call: the 64-bit FNV-1a hash of its key. */
  static std::string name_of(const std::string &key) {
    uint64_t hash = 14695981039346656037ull;
    char text[32];
    for (unsigned char c : key) hash = (hash ^ c) * 1099511628211ull;
    std::snprintf(text, sizeof text, "op_%016llx", static_cast<unsigned long long>(hash));
    return text;
  }
  /** The entry point of a call; null where the library has none. */
  const Entry *find(const std::string &key) {
    std::lock_guard<std::mutex> held(lock_);
    auto found = entries_.find(key);
    if (found != entries_.end()) return found->second.handle() ? &found->second : nullptr;
    Entry made;
    try {
      made = bundle_.entry(name_of(key).c_str());
    } catch (const Error &e) {
      if (e.status != TESS_ERROR_NAME) throw;
    }
    found = entries_.emplace(key, made).first;
    return made.handle() ? &found->second : nullptr;
  }

 private:
  Bundle bundle_;
  Library *before_;
  std::map<std::string, Entry> entries_;
  std::mutex lock_;
};

namespace detail {
struct Given {
  std::vector<Tensor> tensors;
  std::map<std::string, std::string> params;
  void add(const Param &p) { params[p.name] = p.text; }
  void add(const Tensor &x) { tensors.push_back(x); }
};

/** name(dtype[rank],...,param=value,...): what a call is looked up by. */
inline std::string key_of(const char *name, const Given &given, bool flat) {
  std::string key = std::string(name) + "(";
  const char *between = "";
  for (const Tensor &x : given.tensors) {
    key += std::string(between) + dtype_name(x.dtype()) + "[" + std::to_string(flat ? 1 : x.rank()) + "]";
    between = ",";
  }
  for (const auto &p : given.params) key += between + p.first + "=" + p.second, between = ",";
  return key + ")";
}

/** Elements one by one: the same shape for all operands and results. */
inline bool same_shapes(const Given &given) {
  for (const Tensor &x : given.tensors)
    if (x.shape() != given.tensors[0].shape()) return false;
  return !given.tensors.empty();
}

inline Result run(const char *name, const Given &given) {
  Library *library = Library::current();
  if (!library) throw Error(TESS_ERROR_NAME, std::string(name) + ": there is no tessera::Library");
  std::string key = key_of(name, given, false);
  if (const Entry *entry = library->find(key)) return (*entry)(given.tensors);
  std::string flat = "*" + key_of(name, given, true); /* of ops that work element by element */
  const Entry *entry = same_shapes(given) ? library->find(flat) : nullptr;
  if (!entry)
    throw Error(TESS_ERROR_NAME, key + ": the library has no such call; add it with `tessera bundle tsol --op`");
  std::vector<Tensor> lines, made;
  for (const Tensor &x : given.tensors) lines.push_back(x.reshaped({x.elements()}));
  Result out = (*entry)(lines);
  for (size_t i = 0; i < out.size(); i++) made.push_back(out[i].reshaped(given.tensors[0].shape()));
  return Result(std::move(made));
}

template <class... A> Result call(const char *name, const A &...given) {
  Given all;
  (all.add(given), ...);
  return run(name, all);
}
}  // namespace detail
}  // namespace tessera

#endif
