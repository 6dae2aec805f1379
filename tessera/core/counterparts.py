"""Counterparts: what people type from PyTorch, NumPy, JAX and optax, and what to write here instead.

One table for the names of functions and classes, one for the methods of arrays and one for keywords;
modules, tensors and calls that fail look here before they guess at a spelling.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from tessera.core.errors import NoAttributeError, TesseraError, located
from tessera.core.library_names import ANSWERS, of_scipy

_CONCAT, _UNSQUEEZE, _CLIP = (
    "op.concat(tensors, axis)",
    "op.expand_dims(x, axis)",
    "op.clip(x, low, high)",
)
_NO_GRAD = "nothing: only ts.grad, ts.vjp and ts.jvp differentiate"
_APPLY = "params, state = opt.update(grads, state, params), which gives the new parameters"

# Functions, classes and modules; a key with a module in front holds there alone.
NAMES: dict[str, str] = {
    # matrices know more than operators do
    "an operator.eig": "op.eig(A.todense())",
    "an operator.eigh": "op.eigh(A.todense())",
    "an operator.eigvals": "op.eigvals(A.todense())",
    "an operator.eigvalsh": "op.eigvalsh(A.todense())",
    "an operator.svd": "op.svd(A.todense())",
    "an operator.inv": "A.inverse()",
    "an operator.det": "A.logdet() or op.det(A.todense())",
    # ufuncs and modules of NumPy whose names are ops here
    **{f"op.{n}.reduce": f"op.{fold}(x, axis)"
       for n, fold in (("add", "sum"), ("mul", "prod"), ("maximum", "max"), ("minimum", "min"),
                       ("logical_and", "all"), ("logical_or", "any"))},
    **{f"op.{n}.accumulate": f"op.{scan}(x, axis)"
       for n, scan in (("add", "cumsum"), ("mul", "cumprod"), ("maximum", "cummax"), ("minimum", "cummin"))},
    **{f"op.{n}.at": f"x.at[index].{update}(values)"
       for n, update in (("add", "add"), ("mul", "multiply"), ("maximum", "max"), ("minimum", "min"))},
    **{f"op.{n}.outer": f"x[:, None] {sign} y[None, :]"
       for n, sign in (("add", "+"), ("sub", "-"), ("mul", "*"), ("div", "/"))},
    **{f"op.fft.{n}": f"op.{n}" for n in ("fftshift", "ifftshift", "fftfreq", "rfftfreq", "fft2", "ifft2",
                                          "fftn", "ifftn", "rfftn", "irfftn", "hfft", "ihfft")},
    # joining and shaping
    "cat": _CONCAT, "concatenate": _CONCAT, "hstack": "op.concat(tensors, axis=1)",
    "vstack": "op.concat(tensors, axis=0)",
    "dstack": "op.concat(tensors, axis=2)", "column_stack": "op.stack(tensors, axis=1)",
    "row_stack": "op.concat(tensors, axis=0)",
    "chunk": "op.split(x, count, axis)", "array_split": "op.split(x, count, axis)",
    "view": "op.reshape(x, shape)", "permute": "op.transpose(x, axes)",
    "permute_dims": "op.transpose(x, axes)", "unsqueeze": _UNSQUEEZE, "atleast_2d": _UNSQUEEZE,
    "newaxis": "None as an index: x[None]",
    "expand": "op.broadcast_to(x, shape)", "ravel": "op.flatten(x)", "movedim": "op.moveaxis(x, a, b)",
    "swapdims": "op.swapaxes(x, a, b)",
    "repeat_interleave": "op.repeat(x, counts, axis)", "fliplr": "op.flip(x, 1)", "flipud": "op.flip(x, 0)",
    "narrow": "x[start:stop]",
    "index_select": "op.take(x, index, axis)", "masked_fill": "op.where(mask, value, x)",
    "masked_select": "x[mask]", "delete": "op.concat of what stays",
    "append": _CONCAT, "insert": _CONCAT, "unbind": "op.unstack(x, axis)",
    "rearrange": "op.reshape and op.transpose", "squeeze_": "op.squeeze(x, axis)",
    "dynamic_update_slice_in_dim": "op.dynamic_update_slice(x, update, starts)",
    "dynamic_slice_in_dim": "op.dynamic_slice(x, starts, sizes)",
    # element by element
    "subtract": "op.sub(x, y)", "multiply": "op.mul(x, y)", "divide": "op.div(x, y)",
    "true_divide": "op.div(x, y)", "negative": "op.neg(x)",
    "absolute": "op.abs(x)", "fabs": "op.abs(x)", "mod": "op.remainder(x, y)", "clamp": _CLIP,
    "clamp_min": "op.maximum(x, low)", "clamp_max": "op.minimum(x, high)",
    "arcsin": "op.asin(x)", "arccos": "op.acos(x)", "arctan": "op.atan(x)", "arctan2": "op.atan2(y, x)",
    "arcsinh": "op.asinh(x)",
    "arccosh": "op.acosh(x)", "arctanh": "op.atanh(x)", "equal": "op.eq(x, y)", "not_equal": "op.ne(x, y)",
    "less": "op.lt(x, y)",
    "less_equal": "op.le(x, y)", "greater": "op.gt(x, y)", "greater_equal": "op.ge(x, y)",
    "rint": "op.round(x)", "conjugate": "op.conj(x)",
    "bitwise_not": "op.bitwise_invert(x)", "invert": "op.bitwise_invert(x)",
    "nan_to_num": "op.where(op.isnan(x), 0, x)", "expit": "op.sigmoid(x)",
    "allclose": "ts.testing.assert_close(x, y)", "isclose": "op.abs(x - y) <= tolerance",
    "array_equal": "op.all(x == y)", "sgn": "op.sign(x)",
    "lax": "ts.scan, ts.cond, ts.while_loop and ts.fori_loop",
    # folds
    "amax": "op.max(x, axis)", "amin": "op.min(x, axis)", "average": "op.mean(x, axis)",
    "nansum": "op.sum(op.where(op.isnan(x), 0, x), axis)",
    "median": "op.sort(x, axis) and the middle element", "argwhere": "op.nonzero(x)",
    "ptp": "op.max(x, axis) - op.min(x, axis)", "sum_": "op.sum(x, axis)",
    "top_k": "op.topk(x, k)", "segment_sum": "op.scatter_add(x, index, values)",
    "index_add": "x.at[index].add(values)",
    # products
    "mm": "x @ y", "bmm": "x @ y", "dot": "x @ y", "mv": "x @ y", "inner": "op.vecdot(x, y)",
    "vdot": "op.vecdot(x, y)", "addmm": "c + a @ b",
    "baddbmm": "c + a @ b", "linear": "x @ w + b, or nn.Linear", "multi_dot": "a @ b @ c",
    "inverse_": "op.inv(x)", "cholesky_solve": "op.solve(a, b)",
    "solve_triangular": "op.triangular_solve(a, b)", "linalg": "op.solve, op.inv, op.svd, op.eigh, op.norm",
    "rfft2": "op.rfftn(x)",
    # networks
    "layer_norm": "op.layernorm(x, gain, bias)", "batch_norm": "op.batchnorm(x, mean, var)",
    "group_norm": "op.groupnorm(x, groups)",
    "instance_norm": "op.instancenorm(x)", "rms_norm": "op.rmsnorm(x, gain)",
    "scaled_dot_product_attention": "op.attention(q, k, v)",
    "dot_product_attention": "op.attention(q, k, v)", "multi_head_attention": "nn.MultiHeadAttention",
    "mse_loss": "op.mse(x, y)",
    "smooth_l1_loss": "op.smooth_l1(x, y)", "huber_loss": "op.huber(x, y)",
    "binary_cross_entropy_with_logits": "op.binary_cross_entropy(x, y)",
    "softmax_cross_entropy": "op.cross_entropy(logits, labels)",
    "softmax_cross_entropy_with_integer_labels": "op.cross_entropy(logits, labels)",
    "sigmoid_binary_cross_entropy": "op.binary_cross_entropy(x, y)",
    "log_softmax_": "op.log_softmax(x, axis)", "normalize": "op.l2norm(x)",
    "unfold": "op.windows(x, size)", "fold": "op.fold_windows(x, shape)", "pixel_shuffle": "nn.PixelShuffle",
    "upsample": "op.interpolate(x, size)",
    "conv_general_dilated": "op.conv(x, w)", "max_pool2d_with_indices": "op.max_pool2d(x, size)",
    "adaptive_avg_pool2d_": "op.adaptive_avg_pool2d(x, size)",
    "cosine_embedding_loss": "op.cosine_embedding(x, y, target)",
    "triplet_margin_loss": "op.triplet_margin(a, p, n)", "functional": "op",
    "margin_ranking_loss": "op.margin_ranking(x, y, target)", "gelu_new": 'op.gelu(x, approximate="tanh")',
    "rotary_embedding": "op.rope(x)",
    # making tensors
    "array": "ts.tensor(data)", "as_tensor": "ts.asarray(data)", "from_numpy": "ts.tensor(array)",
    "FloatTensor": 'ts.tensor(data, "f32")',
    "LongTensor": 'ts.tensor(data, "i64")', "identity": "ts.eye(n)", "logspace": "10 ** ts.linspace(a, b, n)",
    "rand": "op.random.uniform(key, shape)",
    "randn": "op.random.normal(key, shape)", "rand_like": "op.random.uniform(key, x.shape)",
    "randn_like": "op.random.normal(key, x.shape)",
    "randint": "op.random.randint(key, shape, low, high)", "randperm": "op.random.permutation(key, n)",
    "multinomial": "op.random.categorical(key, logits)",
    "manual_seed": "key = ts.key(seed), and give keys to op.random",
    "seed": "key = ts.key(seed), and give keys to op.random", "PRNGKey": "ts.key(seed)",
    "default_rng": "ts.key(seed), and give keys to op.random", "Generator": "ts.key(seed)",
    "random_split": "ts.split(key, n)",
    # dtypes
    "float32": "ts.f32", "float64": "ts.f64", "float16": "ts.f16", "bfloat16": "ts.bf16", "half": "ts.f16",
    "double": "ts.f64", "int8": "ts.i8",
    "int16": "ts.i16", "int32": "ts.i32", "int64": "ts.i64", "long": "ts.i64", "uint8": "ts.u8",
    "uint16": "ts.u16", "uint32": "ts.u32", "uint64": "ts.u64",
    "complex64": "ts.c64", "complex128": "ts.c128", "float8_e4m3fn": "ts.f8e4m3", "float8_e5m2": "ts.f8e5m2",
    "bool8": "ts.bool_", "float_": "ts.f64",
    # transforms and programs
    "no_grad": _NO_GRAD, "inference_mode": _NO_GRAD, "enable_grad": _NO_GRAD, "set_grad_enabled": _NO_GRAD,
    "device_put": "x.to(device)",
    "block_until_ready": "nothing: a result is ready", "make_jaxpr": "ts.trace(f, *args)",
    "eval_shape": "ts.eval_shape(f, *args)", "jacobian": "ts.jacrev(f)",
    "value_and_gradient": "ts.value_and_grad(f)", "gradient": "ts.grad(f)",
    "pure_callback": "ts.pure_callback(f, types, x)", "tree_map": "ts.tree.map(f, tree)",
    "tree_util": "ts.tree", "tree_flatten": "ts.tree.flatten(tree)",
    "tree_unflatten": "ts.tree.unflatten(structure, leaves)", "tree_leaves": "ts.tree.leaves(tree)",
    "tree_structure": "ts.tree.structure(tree)", "shard_map": "dist.tensor with a layout",
    "pjit": "ts.jit, on tensors with layouts", "switch": "ts.switch(i, branches, x)",
    "cuda": 'ts.devices(), and x.to("cuda")', "set_default_device": "with ts.device(name):",
    "set_num_threads": "with ts.threads(n):",
    "use_deterministic_algorithms": 'nothing: bits are deterministic; see ts.numerics("strict")',
    "numpy": "op", "set_printoptions": "numpy.set_printoptions",
    "associative_scan": "ts.associative_scan(f, x)",
    # networks and training
    "Module": "ts.nn.Module", "Parameter": "a tensor as a field of a module",
    "DataLoader": "ts.data.Loader(dataset, batch)",
    "Dataset": "a class with __len__ and __getitem__, or a tuple of arrays", "Adam": "optim.adam(lr)",
    "AdamW": "optim.adamw(lr)", "SGD": "optim.sgd(lr)", "RMSprop": "optim.rmsprop(lr)",
    "Adagrad": "optim.adagrad(lr)", "Adamax": "optim.adamax(lr)", "NAdam": "optim.nadam(lr)",
    "RAdam": "optim.radam(lr)", "LBFGS": "optim.lbfgs", "Adadelta": "optim.adadelta(lr)",
    "Lion": "optim.lion(lr)", "apply_updates": _APPLY,
    "lr_scheduler": "a function of the step as lr, such as optim.cosine",
    "cosine_decay_schedule": "optim.cosine", "warmup_cosine_decay_schedule": "optim.warmup_cosine",
    "exponential_decay": "optim.exponential", "linear_schedule": "optim.linear",
    "piecewise_constant_schedule": "optim.milestones", "CosineAnnealingLR": "optim.cosine",
    "StepLR": "optim.staircase", "MultiStepLR": "optim.milestones", "OneCycleLR": "optim.one_cycle",
    "ReduceLROnPlateau": "a new optimiser with another lr",
    "clip_grad_norm_": "optim.clip_by_global_norm(grads, norm)",
    "clip_grad_value_": "optim.clip_by_value(grads, limit)",
    "additive_weight_decay": "optim.weight_decay",
    "multi_transform": "optim.groups", "MultiSteps": "optim.accumulate", "Dense": "nn.Linear",
    "Embed": "nn.Embedding", "nn.Conv": "nn.Conv2d", "nn.Param": "a tensor as a field",
    "nn.compact": "fields of a module",
    "nn.Dropout1d": "nn.Dropout", "nn.TransformerEncoderLayer": "nn.MultiHeadAttention and nn.MLP",
    "nn.utils": "nn and optim", "GradScaler": "optim.loss_scaled",
    "autocast": "x.astype(bf16): a dtype carries its policy",
    "optim.clip": "optim.clip_value(bound) or optim.clip_norm(norm)",
    "train.metrics.accuracy": "op.mean(op.argmax(logits, -1) == labels)",
    "train.accuracy": "op.mean(op.argmax(logits, -1) == labels)",
    "data.TensorDataset": "ts.data.Loader((x, y), batch)",
    "data.random_split": "op.random.permutation(key, n)",
    "data.Compose": "a function: ts.data.Loader(..., transform=f)",
    "data.BatchSampler": "ts.data.Order(count, key)", "data.RandomSampler": "ts.data.Order(count, key)",
    "models.from_pretrained": "ts.models.load(path)", "models.AutoModel": "ts.models.load(path)",
    "models.AutoModelForCausalLM": "ts.models.load(path)",
    "models.AutoTokenizer": "ts.models.load(path).tokenizer",
    "models.generate": "ts.models.load(path).generate(prompt)",
    "onnx.run": "ts.onnx.load(path).run({name: array})", "onnx.InferenceSession": "ts.onnx.load(path)",
    "onnx.checker": "ts.onnx.load(path), which checks the file",
    "onnx.dynamo_export": "ts.onnx.save(f, path, *args)",
    "onnx.load_model": "ts.onnx.load(path)", "onnx.save_model": "ts.onnx.save(f, path, *args)",
    "dist.strategy.ddp": "ts.dist.strategy.data(mesh)",
    "torch.compile": 'torch.compile(model, backend="tessera")',
    "stablehlo.save": "path.write_text(ts.stablehlo.export(f, *args))",
    "optim.step": _APPLY, "optim.zero_grad": "nothing: gradients are results",
    "op.random.rand": "op.random.uniform(key, shape)",
    "op.random.randn": "op.random.normal(key, shape)",
    "op.random.seed": "key = ts.key(seed), and give keys to op.random",
    "op.random.shuffle": "op.random.permutation(key, x)",
    "op.random.multinomial": "op.random.categorical(key, logits)", "op.random.PRNGKey": "ts.key(seed)",
    "op.random.random": "op.random.uniform(key, shape)",
    "op.random.standard_normal": "op.random.normal(key, shape)",
    "op.random.default_rng": "ts.key(seed)",
    "ts.to_torch": "torch.from_dlpack(x)", "ts.to_numpy": "x.numpy()",
    "ts.to_jax": "jax.numpy.from_dlpack(x)", "ts.from_jax": "ts.from_dlpack(x)",
    "dist.DataParallel": "dist.strategy.data(mesh)",
    "dist.init_process_group": "nothing: `tessera run -n 4 train.py` starts the ranks",
    "dist.get_rank": "dist.rank()", "dist.get_world_size": "dist.size()",
    "dist.PartitionSpec": "dist.ShardSpec(partition, mesh_axes)",
    "dist.NamedSharding": "dist.ShardSpec(partition, mesh_axes)",
    "dist.device_mesh": "dist.Mesh(axes, shape)",
    "summary": "ts.nn.summary(model, x)", "FSDP": "dist.strategy.fsdp",
    "DistributedDataParallel": "dist.strategy.data", "tree.tree_map": "tree.map",
    "tree.tree_leaves": "tree.leaves",
}  # fmt: skip

_WHOLE = (
    "nothing: a tensor is whole, in the order of its axes; x.numpy().strides are those of its array"
)
# Methods and attributes of arrays.
METHODS: dict[str, str] = {
    "sharding": "t.layout, and t.mesh", "addressable_shards": "t.layout, and t.mesh",
    "placements": "t.layout, and t.mesh", "device_mesh": "t.mesh",
    "solve": "op.solve(a, b), or A.solve(b) of an operator such as op.kronecker(A, B)",
    "data": "x.numpy() to read the elements; to change them, write x = x - y: tensors are values",
    "values": "x.max(axis) alone, which gives the values; their places are op.argmax(x, axis)",
    "indices": "op.argmax(x, axis), or op.topk for both",
    "permute": "x.transpose(axes)", "view": "x.reshape(shape)", "unsqueeze": _UNSQUEEZE,
    "expand": "op.broadcast_to(x, shape)",
    "expand_as": "op.broadcast_to(x, y.shape)", "view_as": "x.reshape(y.shape)", "cuda": 'x.to("cuda")',
    "cpu": 'x.to("cpu")',
    "detach": "op.stop_gradient(x)", "backward": "ts.grad(f)(x)", "requires_grad": "ts.grad(f)(x)",
    "grad": "ts.grad(f)(x)",
    "requires_grad_": "ts.grad(f)(x)", "dim": "x.ndim", "numel": "x.size", "nelement": "x.size",
    "clone": "x, which never changes",
    "contiguous": "x, which is so already", "float": 'x.astype("f32")',
    "double": 'x.astype("f64")',
    "half": 'x.astype("f16")', "bfloat16": 'x.astype("bf16")', "long": 'x.astype("i64")',
    "int": 'x.astype("i32")', "bool": "x.astype(bool)",
    "type": "x.astype(dtype)", "softmax": "op.softmax(x, axis)", "matmul": "x @ y", "mm": "x @ y",
    "bmm": "x @ y", "repeat": "op.tile(x, counts) for PyTorch's, op.repeat(x, count, axis) for NumPy's",
    "tile": "op.tile(x, counts)",
    "clamp": _CLIP, "fill": "ts.full_like(x, value)", "sort": "y = op.sort(x, axis): tensors are values",
    "gather": "op.take_along_axis(x, index, axis)", "index_select": "op.take(x, index, axis)",
    "masked_fill": "op.where(mask, value, x)",
    "chunk": "op.split(x, count, axis)", "split": "op.split(x, count, axis)", "norm": "op.norm(x)",
    "set": "x.at[index].set(value)",
    "block_until_ready": "x, which is ready", "device_buffer": "x.numpy()", "data_ptr": "x.__dlpack__()",
    "step": "opt.update(grads, state, params)",
    "zero_grad": "nothing: gradients are results", "put": "x.at[index].set(value)",
    "mul": "x * y, or x.at[index].multiply(value)", "add": "x + y", "sub": "x - y",
    "subtract": "x - y", "multiply": "x * y",
    "divide": "x / y", "true_divide": "x / y", "floor_divide": "x // y", "negative": "-x", "mv": "x @ y",
    "addmm": "x + a @ b", "eq": "x == y", "less": "x < y", "greater": "x > y", "not_equal": "x != y",
    "less_equal": "x <= y", "greater_equal": "x >= y", "t": "x.T", "adjoint": "op.conj(x).mT",
    "allclose": "np.allclose(x, y), or ts.testing.assert_close(x, y)", "equal": "bool(op.all(x == y))",
    "amax": "x.max(axis)", "amin": "x.min(axis)", "ptp": "x.max() - x.min()",
    "type_as": "x.astype(y.dtype)", "short": 'x.astype("i16")', "char": 'x.astype("i8")',
    "byte": 'x.astype("u8")', "is_floating_point": "x.dtype.is_float", "is_complex": "x.dtype.is_complex",
    "is_cuda": "x.device.kind", "is_cpu": "x.device.kind", "get_device": "x.device.index",
    "element_size": "x.dtype.bits // 8", "itemsize": "x.dtype.bits // 8", "ndimension": "x.ndim",
    "new_zeros": "ts.zeros(shape, x.dtype)", "new_ones": "ts.ones(shape, x.dtype)",
    "new_full": "ts.full(shape, value, x.dtype)", "new_empty": "ts.zeros(shape, x.dtype)",
    "new_tensor": "ts.tensor(data, x.dtype)", "stride": _WHOLE, "strides": _WHOLE,
    "is_contiguous": _WHOLE, "storage_offset": _WHOLE, "flags": _WHOLE, "base": _WHOLE,
    "untyped_storage": "x.numpy()", "flat": "x.reshape(-1)", "tobytes": "x.numpy().tobytes()",
    "tofile": "x.numpy().tofile(path), or ts.save(path, x)", "dump": "ts.save(path, x)",
    "resize": "x.reshape(shape)", "reshape_as": "x.reshape(y.shape)", "unflatten": "x.reshape(shape)",
    "unbind": "list(x), which goes along the first axis", "select": "x[i], or x[:, i] along axis 1",
    "narrow": "x[start:stop], or x[:, start:stop] along axis 1",
    "masked_select": "x[mask] outside of jit, or op.where(mask, x, 0)",
    "masked_scatter": "op.where(mask, y, x)",
    "index_add": "x.at[index].add(value)", "index_put": "x.at[index].set(value)",
    "index_copy": "x.at[index].set(value)", "index_fill": "x.at[index].set(value)",
    "scatter_reduce": "x.at[index].add(value), or .max, .min, .multiply",
    "repeat_interleave": "op.repeat(x, count, axis)", "tensor_split": "op.split(x, count, axis)",
    "partition": "op.sort(x)", "argpartition": "op.topk(x, count)", "compress": "x[mask]",
    "grad_fn": "ts.grad(f)(x)", "is_leaf": "ts.grad(f)(x)", "retain_grad": "ts.grad(f)(x)",
    "register_hook": "ts.custom_vjp", "pin_memory": "nothing: copies to a GPU go through pinned memory",
    "to_dense": "x, which is dense already", "is_fully_replicated": "t.layout",
    "copy_to_host_async": 'x.to("cpu", non_blocking=True)',
}  # fmt: skip

# Methods of modules.
MODULES: dict[str, str] = {
    "parameters": "ts.tree.leaves(model)", "named_parameters": "ts.nn.state_dict(model)",
    "state_dict": "ts.nn.state_dict(model)",
    "load_state_dict": "model = ts.nn.load_state(model, tensors)", "forward": "model(x)",
    "modules": "ts.nn.modules(model)",
    "named_modules": "ts.nn.modules(model)", "children": "ts.nn.modules(model)",
    "apply": "model(x): a model holds its parameters",
    "init": "Layer(..., key=ts.key(0)): a model holds its parameters",
    "train": "nothing: a key given to a call turns dropout on, and BatchNorm takes training=",
    "eval": "nothing: a call without a key has no dropout, and BatchNorm takes training=",
    "zero_grad": "nothing: gradients are results",
    "requires_grad_": "ts.nn.partition(model, where), and differentiate in one part",
    "to": "ts.tree.map(lambda x: x.to(device), model)",
    "cuda": 'ts.tree.map(lambda x: x.to("cuda"), model)', "cpu": 'ts.tree.map(lambda x: x.to("cpu"), model)',
    "half": 'ts.tree.map(lambda x: x.astype("f16"), model)',
    "float": 'ts.tree.map(lambda x: x.astype("f32"), model)',
    "compile": "ts.jit(lambda model, x: model(x))", "replace": "ts.nn.replace(model, field=value)",
    "register_buffer": "a tensor as a field",
    "register_parameter": "a tensor as a field",
}  # fmt: skip

# Keywords, and ours for the same thing.
KEYWORDS: dict[str, str] = {
    "dim": "axis", "dims": "axis", "axes": "axis", "keepdim": "keepdims", "size": "shape",
    "ddof": "correction",
    "unbiased": "correction", "input": "x", "a": "x", "other": "y", "is_causal": "causal",
    "argnum": "argnums",
    "in_dims": "in_axes", "out_dims": "out_axes", "num_groups": "groups", "minval": "low", "maxval": "high",
    "weight_decay": "decay", "start_dim": "start", "end_dim": "stop", "betas": "b1", "learning_rate": "lr",
    "ord": "order", "name": "axis_name",
    "kernel_size": "size", "num_workers": "workers", "batch_size": "batch", "num_warps": "warps",
    "num_stages": "stages",
    "donate_argnums": "donate", "donate_argnames": "donate", "maximum": "max", "minimum": "min",
}  # fmt: skip
# Keywords that have no counterpart, and what to do.
ADVICE: dict[str, str] = {
    "out": "tensors are values: use the result",
    "requires_grad": "differentiate with ts.grad(f)(x)",
    "copy": "ts.tensor copies and ts.asarray need not",
    "backend": "choose with target=",
    "dtype": "for another dtype write x.astype(dtype)",
    "shuffle": "give a key to shuffle: key=ts.key(0)",
    "device": "make it there with ts.device(...) or x.to(...)",
    "compute_uv": "for the values alone write op.svdvals(x)",
    "where": "choose the elements first: op.where(mask, x, 0)",
}
# Calls of other libraries that a function of the same name does not take, and what to write.
CALLS: dict[str, str] = {
    "diag": "a matrix with v on its k-th diagonal is op.diagflat(v, k)",
    "where": "the places of a condition are op.nonzero(condition)",
}


_NEAR = 0.78  # how alike a spelling must be to be meant: adm is adam, foo is not floor


def wanted(ours: str) -> str:
    """What to do, in words, for an entry of a table."""
    return (
        ours.replace("nothing:", "leave it out:", 1)
        if ours.startswith("nothing:")
        else f"write {ours}"
    )


def lacking(
    module: str, name: str, there: Iterable[str], elsewhere: Mapping[str, Iterable[str]] | None = None
) -> AttributeError:  # fmt: skip
    """The error of a name that a module does not have: its counterpart, where it is, or the nearest
    spelling.
    """
    if name.startswith("_"):  # protocols ask for such names, and for a plain answer
        return AttributeError(f"{module} has no attribute '{name}'")
    advice = _advice(module, name, [n for n in there if not n.startswith("_")], elsewhere or {})
    error: TesseraError = NoAttributeError(
        f"{module} has no '{name}'" + (f"; {advice}" if advice else "")
    )
    return located(error)  # type: ignore[return-value]


def _advice(
    module: str, name: str, there: list[str], elsewhere: Mapping[str, Iterable[str]]
) -> str:
    found = NAMES.get(f"{module}.{name}")
    if found:
        return wanted(found)
    for other, names in elsewhere.items():
        if name in names:
            return f"write {other}.{name}"
    if name in NAMES:
        return wanted(NAMES[name])
    answer = ANSWERS.get(f"{module}.{name}", ANSWERS.get(name))
    if answer is None and module == "op":
        answer = of_scipy(name)
    if answer is not None:
        return wanted(answer)
    lower = {n.replace("_", "").lower(): n for n in there}
    same = lower.get(name.replace("_", "").lower())
    near = [same] if same else difflib.get_close_matches(name, there, 1, _NEAR)
    return f"did you mean {module}.{near[0]}?" if near else ""
