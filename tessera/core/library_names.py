"""What to write for functions of NumPy, SciPy, JAX and PyTorch that have no function of their own here."""

from __future__ import annotations

_DTYPES = "the dtypes themselves: x.dtype == ts.f32, x.dtype.kind"
_PUT = "x = x.at[index].set(values)"
_FILES = "ts.save(path, tree) and ts.load(path), or read it with NumPy: ts.tensor(np.load(path))"
_TEXT = "str(x), or NumPy's function of x.numpy()"
_NUMPY = "NumPy's function, and ts.tensor(...) of what it gives"
_STATE = "nothing: floating point follows IEEE 754 without warnings; docs/numerics.md"
_DATES = "NumPy's function: tensors hold no dates"
_RANDOM = "op.random: key = ts.key(seed), op.random.normal(key, shape)"
_ERRORS = "the function without _ex: an error says what is wrong"
_LU = "op.lu(x) and op.triangular_solve, or op.solve(x, b)"
_SHAPES = "ts.eval_shape(f, *args)"
_CONFIG = "nothing: it is set per call or by TESSERA_ flags (docs/cli.md)"
_CALL = "ts.callback(scipy.special.{}, lambda x: x.type): SciPy computes it on the host"

ANSWERS: dict[str, str] = {
    # NumPy: text, files, memory and types
    **dict.fromkeys(
        (
            "array2string",
            "array_repr",
            "array_str",
            "base_repr",
            "binary_repr",
            "format_float_positional",
            "format_float_scientific",
            "typename",
        ),
        _TEXT,
    ),
    **dict.fromkeys(
        ("get_printoptions", "printoptions"), "NumPy's options: tensors print as NumPy's arrays do"
    ),
    **dict.fromkeys(
        ("fromfile", "genfromtxt", "loadtxt", "savetxt", "savez", "savez_compressed", "fromregex"),
        _FILES,
    ),
    "op.load": _FILES,
    "op.save": _FILES,
    **dict.fromkeys(
        (
            "frombuffer",
            "fromiter",
            "fromstring",
            "asmatrix",
            "bmat",
            "nested_iters",
            "require",
            "trim_zeros",
            "mask_indices",
            "sort_complex",
            "real_if_close",
        ),
        _NUMPY,
    ),
    **dict.fromkeys(
        ("asanyarray", "asarray_chkfinite", "ascontiguousarray", "asfortranarray"), "ts.asarray(x)"
    ),
    **dict.fromkeys(("put", "place", "putmask", "copyto"), _PUT),
    **dict.fromkeys(
        (
            "can_cast",
            "common_type",
            "isdtype",
            "issubdtype",
            "iscomplexobj",
            "isrealobj",
            "min_scalar_type",
            "mintypecode",
            "promote_types",
            "result_type",
        ),
        _DTYPES,
    ),
    **dict.fromkeys(
        ("geterr", "seterr", "geterrcall", "seterrcall", "getbufsize", "setbufsize"), _STATE
    ),
    **dict.fromkeys(
        (
            "busday_count",
            "busday_offset",
            "is_busday",
            "datetime_as_string",
            "datetime_data",
            "isnat",
        ),
        _DATES,
    ),
    **dict.fromkeys(
        ("get_include", "show_config", "show_runtime", "info", "test"), "tessera doctor, in a shell"
    ),
    **dict.fromkeys(
        ("may_share_memory", "shares_memory", "isfortran"), "nothing: tensors are values"
    ),
    **dict.fromkeys(
        ("compress", "extract"), "x[mask] outside of jit, or op.where(mask, x, 0) inside"
    ),
    "op.astype": "x.astype(dtype)",
    "op.copy": "x itself: tensors are values",
    "op.ndim": "x.ndim",
    "op.shape": "x.shape",
    "op.size": "x.size",
    "isscalar": "x.ndim == 0",
    "iterable": "x.ndim > 0",
    "broadcast_shapes": "op.broadcast_arrays(x, y)",
    "frompyfunc": "ts.callback(f, lambda x: x.type)",
    "vectorize": "ts.vmap(f)",
    "einsum_path": "op.einsum, which finds its own order",
    "frexp": "op.floor(op.log2(op.abs(x))) + 1 for the exponent, and op.ldexp(x, -exponent)",
    "spacing": "op.abs(op.nextafter(x, 2 * x) - x)",
    # jax.lax
    **dict.fromkeys(
        ("broadcast", "broadcast_in_dim", "broadcast_like", "broadcast_to_rank"),
        "op.broadcast_to(x, shape)",
    ),
    **dict.fromkeys(
        ("dot_general", "ragged_dot", "ragged_dot_general", "scaled_dot"),
        'op.einsum("bik,bkj->bij", x, y)',
    ),
    **dict.fromkeys(
        ("index_in_dim", "slice_in_dim", "index_take", "op.slice"),
        "x[start:stop], or op.take(x, index, axis)",
    ),
    **dict.fromkeys(("dynamic_index_in_dim",), "op.dynamic_slice(x, starts, sizes)"),
    **dict.fromkeys(("dynamic_update_index_in_dim",), "op.dynamic_update_slice(x, part, starts)"),
    **dict.fromkeys(("approx_max_k", "approx_min_k"), "op.topk(x, k)"),
    **{f"reduce_{n}": f"op.{n}(x, axis)" for n in ("max", "min", "sum", "prod")},
    "reduce_and": "op.all(x, axis)",
    "reduce_or": "op.any(x, axis)",
    "reduce_xor": "ts.reduce(x, 0, op.bitwise_xor, axis)",
    "reduce_precision": "x.astype(dtype).astype(x.dtype)",
    "reduce_window": "op.max_pool, op.avg_pool or op.lp_pool",
    "op.map": "ts.map(f, xs)",
    "op.reduce": "ts.reduce(xs, initial, f, axis)",
    "batch_matmul": "x @ y",
    "integer_pow": "x ** n",
    "bitcast_convert_type": "op.bitcast(x, dtype)",
    "convert_element_type": "x.astype(dtype)",
    "collapse": "op.reshape(x, shape)",
    "broadcasted_iota": "op.arange(n) with op.broadcast_to",
    "select_n": "op.where(which, x, y), or op.choose(index, choices)",
    "shift_right_arithmetic": "op.bitwise_right_shift(x, n)",
    "shift_right_logical": "op.bitwise_right_shift(x, n) of an unsigned x",
    "clz": "x.dtype.bits - 1 - op.floor(op.log2(x))",
    "mulhi": "(x.astype(ts.u64) * y) >> 32",
    "sort_key_val": "order = op.argsort(keys), and op.take(values, order)",
    "scatter_sub": "x.at[index].add(-values)",
    "scatter_apply": "x.at[index].apply(f)",
    "custom_linear_solve": "op.cg, op.gmres or op.solve: they have derivatives",
    "custom_root": "ts.custom_vjp(f), or the solvers of docs/solvers.md",
    "optimization_barrier": "ts.checkpoint(f)",
    "stage": "ts.jit(f)",
    "platform_dependent": "ts.jit(f, target=...)",
    "composite": "ts.jit(f)",
    **dict.fromkeys(
        (
            "after_all",
            "create_token",
            "dce_sink",
            "padtype_to_pads",
            "shape_as_value",
            "dtype",
            "conv_general_permutations",
            "conv_dimension_numbers",
            "PrecisionLike",
            "DotDimensionNumbers",
            "ConvGeneralDilatedDimensionNumbers",
        ),
        "nothing: effects keep their order, and ops state their types",
    ),
    **dict.fromkeys(
        (
            "conv_general_shape_tuple",
            "conv_shape_tuple",
            "conv_transpose_shape_tuple",
            "reduce_window_shape_tuple",
            "typeof",
        ),
        _SHAPES,
    ),
    **dict.fromkeys(
        ("conv_general_dilated_local", "conv_general_dilated_patches"),
        "op.unfold(x, size), and a product with it",
    ),
    "conv_with_general_padding": "op.conv(x, w, stride, padding)",
    **dict.fromkeys(
        (
            "all_to_all",
            "pbroadcast",
            "pcast",
            "precv",
            "psend",
            "pshuffle",
            "pswapaxes",
            "ragged_all_to_all",
            "with_sharding_constraint",
        ),
        "dist: collectives of docs/meshes.md",
    ),
    **dict.fromkeys(
        ("rng_bit_generator", "rng_uniform", "random_gamma_grad", "igamma_grad_a"), _RANDOM
    ),
    # jax.nn
    **dict.fromkeys(
        ("scaled_dot_general", "get_scaled_dot_general_config", "scaled_matmul", "scaled_mm"),
        "x @ (w.astype(ts.f32) * scales): the product reads narrow weights",
    ),
    "standardize": "op.layernorm(x)",
    "sparse_plus": "op.where(x >= 1, x, op.where(x <= -1, 0, (x + 1) ** 2 / 4))",
    "sparse_sigmoid": "op.clip((x + 1) / 2, 0, 1)",
    # jax.scipy.signal
    "convolve2d": "op.conv(x[None, None], op.flip(w)[None, None], padding=...)",
    "correlate2d": "op.conv(x[None, None], w[None, None])",
    "fftconvolve": "op.irfft(op.rfft(x, n) * op.rfft(y, n), n)",
    "detrend": "x - op.polyval(op.polyfit(t, x, 1), t)",
    "welch": "op.stft(x, ...), and the mean of op.square(op.abs(...))",
    "csd": "op.stft of both, and the mean of their product",
    # jax.random
    **{
        f"ts.{n}": f"op.random.{n}(key, ...)"
        for n in (
            "bernoulli",
            "categorical",
            "choice",
            "exponential",
            "gumbel",
            "normal",
            "uniform",
            "laplace",
            "truncated_normal",
            "beta",
            "bits",
            "dirichlet",
            "loggamma",
            "poisson",
        )
    },
    **dict.fromkeys(
        (
            "ball",
            "ts.logistic",
            "binomial",
            "cauchy",
            "chisquare",
            "double_sided_maxwell",
            "ts.f",
            "generalized_normal",
            "geometric",
            "lognormal",
            "maxwell",
            "multivariate_normal",
            "orthogonal",
            "pareto",
            "rademacher",
            "rayleigh",
            "ts.t",
            "wald",
            "weibull_min",
        ),
        "op.random, which has draws by name, or transform op.random.uniform and op.random.normal",
    ),
    **dict.fromkeys(
        ("clone", "key_data", "key_dtype", "key_impl", "wrap_key_data"),
        "nothing: a key is a tensor",
    ),
    # jax
    **dict.fromkeys(
        (
            "allow_f16_reductions",
            "array_garbage_collection_guard",
            "auto_pcast",
            "check_tracer_leaks",
            "checking_leaks",
            "debug_key_reuse",
            "default_matmul_precision",
            "default_prng_impl",
            "enable_checks",
            "enable_custom_prng",
            "enable_x64",
            "jax2tf_associative_scan_reductions",
            "legacy_prng_key",
            "no_execution",
            "no_tracing",
            "numpy_dtype_promotion",
            "numpy_rank_promotion",
            "softmax_custom_jvp",
            "thread_guard",
            "threefry_partitionable",
            "transfer_guard",
            "transfer_guard_device_to_device",
            "transfer_guard_device_to_host",
            "transfer_guard_host_to_device",
            "make_user_context",
            "remove_size_one_mesh_axis_from_type",
            "debug_infs",
        ),
        _CONFIG,
    ),
    **dict.fromkeys(("empty_ref", "free_ref", "freeze", "new_ref"), "x = x.at[index].set(values)"),
    **dict.fromkeys(
        (
            "host_count",
            "host_id",
            "host_ids",
            "process_count",
            "process_index",
            "process_indices",
            "local_device_count",
            "local_devices",
            "device_count",
            "make_array_from_callback",
            "make_array_from_process_local_data",
            "make_array_from_single_device_arrays",
            "make_mesh",
            "reshard",
            "smap",
        ),
        "dist and ts.mesh(...) (docs/meshes.md)",
    ),
    **dict.fromkeys(
        ("default_backend", "default_device"), 'ts.device("cuda:0"), or ts.jit(f, target=...)'
    ),
    **dict.fromkeys(("device_get", "copy_to_host_async", "live_arrays"), "x.numpy()"),
    "disable_jit": "the function without ts.jit: ops run eagerly",
    "clear_caches": "tessera cache clear, in a shell",
    "explain_cache_misses": "nothing: repeated compilation warns with what changed",
    "log_compiles": "ts.profile()",
    "effects_barrier": "nothing: a result is ready",
    "ensure_compile_time_eval": "NumPy for what is known while tracing",
    "closure_convert": "the function itself: what it closes over is traced",
    "custom_gradient": "ts.custom_vjp(f)",
    "ds": "op.dynamic_slice(x, starts, sizes)",
    "fwd_and_bwd": "ts.vjp(f, *xs)",
    "linear_transpose": "ts.vjp(f, x) of a linear f",
    "named_call": "ts.jit(f), which has its name",
    "named_scope": "ts.profile()",
    "print_environment_info": "tessera doctor, in a shell",
    # torch.nn.functional
    **{f"adaptive_max_pool{k}d": "op.adaptive_max_pool(x, size)" for k in (1, 2, 3)},
    **{f"lp_pool{k}d": "op.lp_pool(x, size, p)" for k in (1, 2, 3)},
    **{
        f"{n}_with_indices": "the pool without indices; places are op.argmax over op.unfold"
        for n in (
            "max_pool1d",
            "max_pool2d",
            "max_pool3d",
            "adaptive_max_pool1d",
            "adaptive_max_pool2d",
            "adaptive_max_pool3d",
        )
    },
    **{
        f"fractional_max_pool{k}d{end}": "op.adaptive_max_pool(x, size), whose windows are even"
        for k in (2, 3)
        for end in ("", "_with_indices")
    },
    **{f"max_unpool{k}d": "op.zeros(shape).at[places].set(x)" for k in (1, 2, 3)},
    **{
        f"dropout{k}d": "nn.Dropout, on a mask of shape (batch, channels, 1, ...)"
        for k in (1, 2, 3)
    },
    **dict.fromkeys(("alpha_dropout", "feature_alpha_dropout"), "nn.Dropout"),
    "gaussian_nll_loss": "op.gaussian_nll(mean, targets, var)",
    "poisson_nll_loss": "op.poisson_nll(x, targets)",
    "multilabel_soft_margin_loss": "op.binary_cross_entropy of op.sigmoid(x), mean over classes",
    "multilabel_margin_loss": "op.multi_margin(x, labels) for each label",
    "triplet_margin_with_distance_loss": "op.mean(op.maximum(d(a, p) - d(a, n) + margin, 0))",
    "rrelu": "op.leaky_relu(x, (1 / 8 + 1 / 3) / 2), which is rrelu in evaluation",
    "conv_tbc": "op.conv on op.transpose(x, (1, 2, 0))",
    "upsample_bilinear": "op.resize(x, size)",
    "upsample_nearest": "op.resize(x, size)",
    "linear_cross_entropy": "op.cross_entropy(x @ w.mT, labels)",
    "multi_head_attention_forward": "nn.MultiHeadAttention",
    **dict.fromkeys(
        ("grouped_mm", "scaled_grouped_mm"),
        "op.moe_dispatch and op.moe_combine, with a product for each group",
    ),
    **dict.fromkeys(
        (
            "assert_int_or_pair",
            "boolean_dispatch",
            "handle_torch_function",
            "has_torch_function",
            "has_torch_function_unary",
            "has_torch_function_variadic",
            "Optional",
        ),
        "nothing: it is inside of PyTorch",
    ),
    # torch.linalg
    **dict.fromkeys(
        ("cholesky_ex", "inv_ex", "ldl_factor_ex", "lu_factor_ex", "solve_ex"), _ERRORS
    ),
    **dict.fromkeys(("lu_factor", "lu_solve", "ldl_factor", "ldl_solve"), _LU),
    "householder_product": "op.qr(x)",
    # torch.special
    **{
        f"{n}_polynomial_{k}": f"op.eval_{short}{k}(n, x)"
        for n, short, kinds in (
            ("chebyshev", "cheby", "tu"),
            ("shifted_chebyshev", "sh_cheby", "tu"),
        )
        for k in kinds
    },
    **{
        f"{n}chebyshev_polynomial_{k}": "op.eval_jacobi(n, a, b, x), scaled"
        for n in ("", "shifted_")
        for k in "vw"
    },
    "hermite_polynomial_h": "op.eval_hermite(n, x)",
    "hermite_polynomial_he": "op.eval_hermitenorm(n, x)",
    "laguerre_polynomial_l": "op.eval_laguerre(n, x)",
    "legendre_polynomial_p": "op.eval_legendre(n, x)",
    "modified_bessel_i0": "op.i0(x)",
    "modified_bessel_i1": "op.i1(x)",
    **{
        theirs: _CALL.format(own)
        for theirs, own in (
            ("airy_ai", "airy"),
            ("bessel_j0", "j0"),
            ("bessel_j1", "j1"),
            ("bessel_y0", "y0"),
            ("bessel_y1", "y1"),
            ("modified_bessel_k0", "k0"),
            ("modified_bessel_k1", "k1"),
            ("scaled_modified_bessel_k0", "k0e"),
            ("scaled_modified_bessel_k1", "k1e"),
            ("spherical_bessel_j0", "spherical_jn"),
            ("bessel_jn", "jv"),
        )
    },
    # SciPy
    "binom": "op.comb(n, k)",
    "loggamma": "op.lgamma(x)",
    "euler": _NUMPY,
    "bernoulli": _NUMPY,
    "factorialk": "scipy.special.factorialk",
}


def of_scipy(name: str) -> str | None:
    """What to write for a function of scipy.special that has none here."""
    import scipy.special

    if name.startswith("_") or not callable(getattr(scipy.special, name, None)):
        return None
    return _CALL.format(name)
