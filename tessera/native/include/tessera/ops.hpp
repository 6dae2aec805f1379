/* ops.hpp: every op of Tessera as a function of C++17, over the C interface.
 *
 * Written by tools/ops_header.py from the records of the ops; do not edit.  Machine code comes from a library of
 * ops, a bundle that `tessera bundle tsol` writes; docs/tsol.md says how.
 */
#ifndef TESSERA_OPS_HPP
#define TESSERA_OPS_HPP

#include "tessera/tensor.hpp"

namespace tessera {
namespace op {
/** Absolute value.  Python: op.abs(x, /) */
template <class... A> Result abs(const A &...given) { return detail::call("abs", given...); }
/** Inverse cosine.  Python: op.acos(x, /) */
template <class... A> Result acos(const A &...given) { return detail::call("acos", given...); }
/** Inverse hyperbolic cosine.  Python: op.acosh(x, /) */
template <class... A> Result acosh(const A &...given) { return detail::call("acosh", given...); }
/** The means of `size` windows that cover each spatial axis as evenly as whole numbers allow.  Python: op.adaptive_avg_pool(x, size) */
template <class... A> Result adaptive_avg_pool(const A &...given) { return detail::call("adaptive_avg_pool", given...); }
/** adaptive_avg_pool over one spatial axis.  Python: op.adaptive_avg_pool1d(x, size) */
template <class... A> Result adaptive_avg_pool1d(const A &...given) { return detail::call("adaptive_avg_pool1d", given...); }
/** adaptive_avg_pool over two spatial axes.  Python: op.adaptive_avg_pool2d(x, size) */
template <class... A> Result adaptive_avg_pool2d(const A &...given) { return detail::call("adaptive_avg_pool2d", given...); }
/** adaptive_avg_pool over three spatial axes.  Python: op.adaptive_avg_pool3d(x, size) */
template <class... A> Result adaptive_avg_pool3d(const A &...given) { return detail::call("adaptive_avg_pool3d", given...); }
/** The largest element of each of `size` windows that cover the last axes evenly; None keeps an axis.  Python: op.adaptive_max_pool(x, size) */
template <class... A> Result adaptive_max_pool(const A &...given) { return detail::call("adaptive_max_pool", given...); }
/** Sum of two tensors.  Python: op.add(x, y, /) */
template <class... A> Result add(const A &...given) { return detail::call("add", given...); }
/** The transposed cofactors: x @ adjugate(x) = det(x) times the identity, singular x too.  Python: op.adjugate(x) */
template <class... A> Result adjugate(const A &...given) { return detail::call("adjugate", given...); }
/** How the adjugate of x changes along t, singular x too.  Python: op.adjugate_slope(x, t) */
template <class... A> Result adjugate_slope(const A &...given) { return detail::call("adjugate_slope", given...); }
/** The grid for grid_sample that moves images of a shape by matrices (batch, rank, rank + 1).  Python: op.affine_grid(theta, shape, align_corners=False) */
template <class... A> Result affine_grid(const A &...given) { return detail::call("affine_grid", given...); }
/** The arithmetic-geometric mean of numbers above 0.  Python: op.agm(a, b) */
template <class... A> Result agm(const A &...given) { return detail::call("agm", given...); }
/** Whether all elements over axes are true.  Python: op.all(x, axis=None, keepdims=False) */
template <class... A> Result all(const A &...given) { return detail::call("all", given...); }
/** Whether all elements are close, see isclose.  Python: op.allclose(x, y, rtol=1e-05, atol=1e-08, equal_nan=False) */
template <class... A> Result allclose(const A &...given) { return detail::call("allclose", given...); }
/** The argument of complex numbers.  Python: op.angle(z, deg=False) */
template <class... A> Result angle(const A &...given) { return detail::call("angle", given...); }
/** Whether any element over axes is true.  Python: op.any(x, axis=None, keepdims=False) */
template <class... A> Result any(const A &...given) { return detail::call("any", given...); }
/** values after x, along an axis or as one.  Python: op.append(x, values, axis=None) */
template <class... A> Result append(const A &...given) { return detail::call("append", given...); }
/** f of each vector along an axis; what it gives takes the place of that axis.  Python: op.apply_along_axis(f, axis, x) */
template <class... A> Result apply_along_axis(const A &...given) { return detail::call("apply_along_axis", given...); }
/** f(x, axis) for one axis after another; an axis that f removes is kept with size 1.  Python: op.apply_over_axes(f, x, axes) */
template <class... A> Result apply_over_axes(const A &...given) { return detail::call("apply_over_axes", given...); }
/** Numbers from start (0 when only stop is given) up to stop, by step.  Python: op.arange(start, stop=None, step=1, dtype=None) */
template <class... A> Result arange(const A &...given) { return detail::call("arange", given...); }
/** Index of the first largest element along an axis.  Python: op.argmax(x, axis=None, keepdims=False) */
template <class... A> Result argmax(const A &...given) { return detail::call("argmax", given...); }
/** Index of the first smallest element along an axis.  Python: op.argmin(x, axis=None, keepdims=False) */
template <class... A> Result argmin(const A &...given) { return detail::call("argmin", given...); }
/** The order of partition.  Python: op.argpartition(x, kth, axis=-1) */
template <class... A> Result argpartition(const A &...given) { return detail::call("argpartition", given...); }
/** The indices that sort x along an axis; equal elements keep their order.  Python: op.argsort(x, axis=-1, descending=False, stable=True) */
template <class... A> Result argsort(const A &...given) { return detail::call("argsort", given...); }
/** The places of the elements that are not 0, one a row; inside jit give size=.  Python: op.argwhere(x, size=None, fill=0) */
template <class... A> Result argwhere(const A &...given) { return detail::call("argwhere", given...); }
/** Whether two tensors have the same shape and elements.  Python: op.array_equal(x, y, equal_nan=False) */
template <class... A> Result array_equal(const A &...given) { return detail::call("array_equal", given...); }
/** Whether two tensors have the same elements after broadcasting.  Python: op.array_equiv(x, y) */
template <class... A> Result array_equiv(const A &...given) { return detail::call("array_equiv", given...); }
/** Parts as even as whole numbers allow, the longer ones first; or cut at these indices.  Python: op.array_split(x, parts, axis=0) */
template <class... A> Result array_split(const A &...given) { return detail::call("array_split", given...); }
/** Inverse sine.  Python: op.asin(x, /) */
template <class... A> Result asin(const A &...given) { return detail::call("asin", given...); }
/** Inverse hyperbolic sine.  Python: op.asinh(x, /) */
template <class... A> Result asinh(const A &...given) { return detail::call("asinh", given...); }
/** Inverse tangent.  Python: op.atan(x, /) */
template <class... A> Result atan(const A &...given) { return detail::call("atan", given...); }
/** Angle of the vector (y, x).  Python: op.atan2(x, y, /) */
template <class... A> Result atan2(const A &...given) { return detail::call("atan2", given...); }
/** Inverse hyperbolic tangent.  Python: op.atanh(x, /) */
template <class... A> Result atanh(const A &...given) { return detail::call("atanh", given...); }
/** x, a number as one element.  Python: op.atleast_1d(x) */
template <class... A> Result atleast_1d(const A &...given) { return detail::call("atleast_1d", given...); }
/** x with two axes or more: a vector becomes a row.  Python: op.atleast_2d(x) */
template <class... A> Result atleast_2d(const A &...given) { return detail::call("atleast_2d", given...); }
/** x with three axes or more: a vector becomes (1, n, 1), a matrix (m, n, 1).  Python: op.atleast_3d(x) */
template <class... A> Result atleast_3d(const A &...given) { return detail::call("atleast_3d", given...); }
/** softmax(q k^T * scale) v on (..., heads, seq, dim).  Python: op.attention(q, k, v, causal=False, scale=None, mask=None) */
template <class... A> Result attention(const A &...given) { return detail::call("attention", given...); }
/** The cotangents of q, k and v, for the cotangent of o = attention(q, k, v).  Python: op.attention_grad(q, k, v, o, ct, causal=False, scale=1.0) */
template <class... A> Result attention_grad(const A &...given) { return detail::call("attention_grad", given...); }
/** The tangent of o = attention(q, k, v) for tangents of q, k and v.  Python: op.attention_tangent(q, k, v, o, tq, tk, tv, causal=False, scale=1.0) */
template <class... A> Result attention_tangent(const A &...given) { return detail::call("attention_tangent", given...); }
/** The mean, weighted where weights are given: of the shape of x, or one for each element of an axis.  Python: op.average(x, axis=None, weights=None, keepdims=False) */
template <class... A> Result average(const A &...given) { return detail::call("average", given...); }
/** The mean of each window; padding counts as zeros, or not at all.  Python: op.avg_pool(x, size, stride=None, padding=0, ceil_mode=False, count_include_pad=True) */
template <class... A> Result avg_pool(const A &...given) { return detail::call("avg_pool", given...); }
/** avg_pool over one spatial axis.  Python: op.avg_pool1d(x, size, stride=None, padding=0, ceil_mode=False, count_include_pad=True) */
template <class... A> Result avg_pool1d(const A &...given) { return detail::call("avg_pool1d", given...); }
/** avg_pool over two spatial axes.  Python: op.avg_pool2d(x, size, stride=None, padding=0, ceil_mode=False, count_include_pad=True) */
template <class... A> Result avg_pool2d(const A &...given) { return detail::call("avg_pool2d", given...); }
/** avg_pool over three spatial axes.  Python: op.avg_pool3d(x, size, stride=None, padding=0, ceil_mode=False, count_include_pad=True) */
template <class... A> Result avg_pool3d(const A &...given) { return detail::call("avg_pool3d", given...); }
/** The cotangent of x, of `sizes` along its spatial axes, for a cotangent of avg_pool(x).  Python:  */
template <class... A> Result avg_pool_grad(const A &...given) { return detail::call("avg_pool_grad", given...); }
/** The same values, which no pass may take for those that went in or compute before all of them.  Python: op.barrier(*xs) */
template <class... A> Result barrier(const A &...given) { return detail::call("barrier", given...); }
/** The triangular window of n points, both ends 0.  Python: op.bartlett(n) */
template <class... A> Result bartlett(const A &...given) { return detail::call("bartlett", given...); }
/** (x - mean) / sqrt(var + eps) * gain + bias with statistics given for each channel.  Python: op.batchnorm(x, mean, var, gain=None, bias=None, axis=1, eps=1e-05) */
template <class... A> Result batchnorm(const A &...given) { return detail::call("batchnorm", given...); }
/** batchnorm by the statistics of this batch: the result, and its mean and variance.  Python: op.batchnorm_train(x, gain=None, bias=None, axis=1, eps=1e-05) */
template <class... A> Result batchnorm_train(const A &...given) { return detail::call("batchnorm_train", given...); }
/** The chance of at most k of n events of probability p.  Python: op.bdtr(k, n, p) */
template <class... A> Result bdtr(const A &...given) { return detail::call("bdtr", given...); }
/** The chance of more than k of n events of probability p.  Python: op.bdtrc(k, n, p) */
template <class... A> Result bdtrc(const A &...given) { return detail::call("bdtrc", given...); }
/** exp(-|x|) times the modified Bessel function of order 0.  Python: op.bessel_i0e(x) */
template <class... A> Result bessel_i0e(const A &...given) { return detail::call("bessel_i0e", given...); }
/** exp(-|x|) times the modified Bessel function of order 1.  Python: op.bessel_i1e(x) */
template <class... A> Result bessel_i1e(const A &...given) { return detail::call("bessel_i1e", given...); }
/** gamma(a) gamma(b) / gamma(a + b).  Python: op.beta(a, b) */
template <class... A> Result beta(const A &...given) { return detail::call("beta", given...); }
/** The incomplete beta function divided by beta(a, b).  Python: op.betainc(a, b, x) */
template <class... A> Result betainc(const A &...given) { return detail::call("betainc", given...); }
/** 1 - betainc(a, b, x), without cancellation.  Python: op.betaincc(a, b, x) */
template <class... A> Result betaincc(const A &...given) { return detail::call("betaincc", given...); }
/** The logarithm of the beta function.  Python: op.betaln(a, b) */
template <class... A> Result betaln(const A &...given) { return detail::call("betaln", given...); }
/** x[i] w[o, i, j] y[j] for every o: w is (out, in 1, in 2).  Python: op.bilinear(x, y, w, bias=None) */
template <class... A> Result bilinear(const A &...given) { return detail::call("bilinear", given...); }
/** -(y log p + (1 - y) log(1 - p)) with p = sigmoid(x), or p = x when logits is False.  Python: op.binary_cross_entropy(x, targets, logits=True, reduction='mean') */
template <class... A> Result binary_cross_entropy(const A &...given) { return detail::call("binary_cross_entropy", given...); }
/** How often each number 0, 1, 2 ... is in x, or the sum of weights there.  Python: op.bincount(x, weights=None, minlength=0, length=None) */
template <class... A> Result bincount(const A &...given) { return detail::call("bincount", given...); }
/** The bits of x as numbers of another format of the same width, 32 or 64 bits.  Python: op.bitcast(x, dtype) */
template <class... A> Result bitcast(const A &...given) { return detail::call("bitcast", given...); }
/** Bits set in both.  Python: op.bitwise_and(x, y, /) */
template <class... A> Result bitwise_and(const A &...given) { return detail::call("bitwise_and", given...); }
/** How many bits of |x| are 1, as u8.  Python: op.bitwise_count(x) */
template <class... A> Result bitwise_count(const A &...given) { return detail::call("bitwise_count", given...); }
/** Every bit flipped.  Python: op.bitwise_invert(x, /) */
template <class... A> Result bitwise_invert(const A &...given) { return detail::call("bitwise_invert", given...); }
/** Bits moved up.  Python: op.bitwise_left_shift(x, y, /) */
template <class... A> Result bitwise_left_shift(const A &...given) { return detail::call("bitwise_left_shift", given...); }
/** Bits set in either.  Python: op.bitwise_or(x, y, /) */
template <class... A> Result bitwise_or(const A &...given) { return detail::call("bitwise_or", given...); }
/** Bits moved down, keeping the sign.  Python: op.bitwise_right_shift(x, y, /) */
template <class... A> Result bitwise_right_shift(const A &...given) { return detail::call("bitwise_right_shift", given...); }
/** Bits set in just one.  Python: op.bitwise_xor(x, y, /) */
template <class... A> Result bitwise_xor(const A &...given) { return detail::call("bitwise_xor", given...); }
/** The Blackman window of n points.  Python: op.blackman(n) */
template <class... A> Result blackman(const A &...given) { return detail::call("blackman", given...); }
/** (x^lmbda - 1) / lmbda, log(x) at lmbda = 0.  Python: op.boxcox(x, lmbda) */
template <class... A> Result boxcox(const A &...given) { return detail::call("boxcox", given...); }
/** boxcox of 1 + x, exact near 0.  Python: op.boxcox1p(x, lmbda) */
template <class... A> Result boxcox1p(const A &...given) { return detail::call("boxcox1p", given...); }
/** Tensors broadcast to the shape that they meet in.  Python: op.broadcast_arrays(*xs) */
template <class... A> Result broadcast_arrays(const A &...given) { return detail::call("broadcast_arrays", given...); }
/** x repeated along new axes and along axes of size 1.  Python: op.broadcast_to(x, shape) */
template <class... A> Result broadcast_to(const A &...given) { return detail::call("broadcast_to", given...); }
/** The product A @ x of a block-sparse matrix, blocks (entries, rows, columns) in CSR form, and x.  Python: op.bsmm(blocks, columns, pointers, x) */
template <class... A> Result bsmm(const A &...given) { return detail::call("bsmm", given...); }
/** The outputs of a named graph.  Python: op.call(region, *operands, name) */
template <class... A> Result call(const A &...given) { return detail::call("call", given...); }
/** x in another dtype, rounded as that dtype's policy says.  Python: op.cast(x, dtype) */
template <class... A> Result cast(const A &...given) { return detail::call("cast", given...); }
/** x in the dtype of y.  Python: op.cast_like(x, y) */
template <class... A> Result cast_like(const A &...given) { return detail::call("cast_like", given...); }
/** Bools (queries, keys): whether a query may see a key, the last query seeing all keys.  Python: op.causal_mask(queries, keys) */
template <class... A> Result causal_mask(const A &...given) { return detail::call("causal_mask", given...); }
/** Cube root.  Python: op.cbrt(x, /) */
template <class... A> Result cbrt(const A &...given) { return detail::call("cbrt", given...); }
/** Smallest whole number not below x.  Python: op.ceil(x, /) */
template <class... A> Result ceil(const A &...given) { return detail::call("ceil", given...); }
/** x where it is positive, alpha * (exp(x / alpha) - 1) elsewhere.  Python: op.celu(x, alpha=1.0) */
template <class... A> Result celu(const A &...given) { return detail::call("celu", given...); }
/** The channels, axis 1, of all groups in turn.  Python: op.channel_shuffle(x, groups) */
template <class... A> Result channel_shuffle(const A &...given) { return detail::call("channel_shuffle", given...); }
/** The distribution function of chi-square with v degrees of freedom.  Python: op.chdtr(v, x) */
template <class... A> Result chdtr(const A &...given) { return detail::call("chdtr", given...); }
/** 1 - chdtr(v, x).  Python: op.chdtrc(v, x) */
template <class... A> Result chdtrc(const A &...given) { return detail::call("chdtrc", given...); }
/** x, if every element is finite; else NumericalError with the message, in eager and compiled code.  Python: op.check_numerics(x, message='') */
template <class... A> Result check_numerics(const A &...given) { return detail::call("check_numerics", given...); }
/** The index, if all of it is in low..high or equal to skip; else an error that names its user.  Python:  */
template <class... A> Result checked_index(const A &...given) { return detail::call("checked_index", given...); }
/** The outputs of a graph whose derivative computes again what the policy does not keep.  Python:  */
template <class... A> Result checkpoint(const A &...given) { return detail::call("checkpoint", given...); }
/** x, named so that a policy of checkpoint can keep it.  Python: op.checkpoint_name(x, name) */
template <class... A> Result checkpoint_name(const A &...given) { return detail::call("checkpoint_name", given...); }
/** The lower triangular L with L @ L.H = x for the Hermitian part of x, or L.H with upper.  Python: op.cholesky(x, upper=False) */
template <class... A> Result cholesky(const A &...given) { return detail::call("cholesky", given...); }
/** For every element, that of the choice that index names; an index out of range takes the nearest.  Python: op.choose(index, choices) */
template <class... A> Result choose(const A &...given) { return detail::call("choose", given...); }
/** x, but at least min and at most max; at an end the slope is that of x, 1.  Python: op.clip(x, min=None, max=None) */
template <class... A> Result clip(const A &...given) { return detail::call("clip", given...); }
/** The unitary matrix that diagonalises the block of the Hermitian m for each cluster.  Python:  */
template <class... A> Result cluster_turn(const A &...given) { return detail::call("cluster_turn", given...); }
/** Numbers that tell which of the sorted values w are equal but for rounding, NULL for zeros.  Python:  */
template <class... A> Result clusters(const A &...given) { return detail::call("clusters", given...); }
/** Join along the second axis; vectors are columns.  Python: op.column_stack(xs) */
template <class... A> Result column_stack(const A &...given) { return detail::call("column_stack", given...); }
/** How many ways there are to choose k of n.  Python: op.comb(n, k) */
template <class... A> Result comb(const A &...given) { return detail::call("comb", given...); }
/** A complex tensor from its real and imaginary parts.  Python: op.complex(re, im) */
template <class... A> Result complex(const A &...given) { return detail::call("complex", given...); }
/** contract of two complex operands, as four products of real ones.  Python: op.complex_contract(spec, x, y) */
template <class... A> Result complex_contract(const A &...given) { return detail::call("complex_contract", given...); }
/** Tensors joined end to end along an axis.  Python: op.concat(xs, axis=0) */
template <class... A> Result concat(const A &...given) { return detail::call("concat", given...); }
/** true_fn(*operands) if pred holds, else false_fn(*operands); only one of them runs.  Python: op.cond(pred, true_fn, false_fn, *operands) */
template <class... A> Result cond(const A &...given) { return detail::call("cond", given...); }
/** Complex conjugate.  Python: op.conj(x, /) */
template <class... A> Result conj(const A &...given) { return detail::call("conj", given...); }
/** The given data.  Python: op.constant(x) */
template <class... A> Result constant(const A &...given) { return detail::call("constant", given...); }
/** Sum of products of operands with named axes: contract("m k, k n -> m n", a, b).  Python: op.contract(spec, *xs) */
template <class... A> Result contract(const A &...given) { return detail::call("contract", given...); }
/** Sums of x times the kernel w over sliding windows, for every out channel.  Python: op.conv(x, w, bias=None, stride=1, padding=0, dilation=1, groups=1, inner=1) */
template <class... A> Result conv(const A &...given) { return detail::call("conv", given...); }
/** conv of x (batch, channels, length) with w (out, in / groups, size).  Python: op.conv1d(x, w, bias=None, stride=1, padding=0, dilation=1, groups=1) */
template <class... A> Result conv1d(const A &...given) { return detail::call("conv1d", given...); }
/** conv of x (batch, channels, height, width) with w (out, in / groups, height, width).  Python: op.conv2d(x, w, bias=None, stride=1, padding=0, dilation=1, groups=1) */
template <class... A> Result conv2d(const A &...given) { return detail::call("conv2d", given...); }
/** conv of x (batch, channels, depth, height, width) with w (out, in / groups, ...).  Python: op.conv3d(x, w, bias=None, stride=1, padding=0, dilation=1, groups=1) */
template <class... A> Result conv3d(const A &...given) { return detail::call("conv3d", given...); }
/** The derivative of a conv in its x, of `size` along the spatial axes: ct times w, added up.  Python: op.conv_input(ct, w, size, stride=1, padding=0, dilation=1, groups=1) */
template <class... A> Result conv_input(const A &...given) { return detail::call("conv_input", given...); }
/** The adjoint of conv in its x: w is (in channels, out channels / groups, ...).  Python: op.conv_transpose(x, w, bias=None, stride=1, padding=0, output_padding=0, dilation=1, groups=1) */
template <class... A> Result conv_transpose(const A &...given) { return detail::call("conv_transpose", given...); }
/** conv_transpose of x (batch, channels, length).  Python: op.conv_transpose1d(x, w, bias=None, stride=1, padding=0, output_padding=0, dilation=1, groups=1) */
template <class... A> Result conv_transpose1d(const A &...given) { return detail::call("conv_transpose1d", given...); }
/** conv_transpose of x (batch, channels, height, width).  Python: op.conv_transpose2d(x, w, bias=None, stride=1, padding=0, output_padding=0, dilation=1, groups=1) */
template <class... A> Result conv_transpose2d(const A &...given) { return detail::call("conv_transpose2d", given...); }
/** conv_transpose of x (batch, channels, depth, height, width).  Python: op.conv_transpose3d(x, w, bias=None, stride=1, padding=0, output_padding=0, dilation=1, groups=1) */
template <class... A> Result conv_transpose3d(const A &...given) { return detail::call("conv_transpose3d", given...); }
/** The derivative of a conv in its kernel: x times ct, summed over the batch and all places.  Python: op.conv_weights(x, ct, window, stride=1, padding=0, dilation=1, groups=1, inner=1) */
template <class... A> Result conv_weights(const A &...given) { return detail::call("conv_weights", given...); }
/** The convolution of two vectors; mode: full, same or valid.  Python: op.convolve(x, y, mode='full') */
template <class... A> Result convolve(const A &...given) { return detail::call("convolve", given...); }
/** Magnitude of x with the sign of y.  Python: op.copysign(x, y, /) */
template <class... A> Result copysign(const A &...given) { return detail::call("copysign", given...); }
/** The correlations of the rows of x (with rowvar=False, of its columns), and of y beside them.  Python: op.corrcoef(x, y=None, rowvar=True) */
template <class... A> Result corrcoef(const A &...given) { return detail::call("corrcoef", given...); }
/** The cross-correlation of two vectors: sums of x[n + k] conj(y[n]).  Python: op.correlate(x, y, mode='valid') */
template <class... A> Result correlate(const A &...given) { return detail::call("correlate", given...); }
/** Cosine.  Python: op.cos(x, /) */
template <class... A> Result cos(const A &...given) { return detail::call("cos", given...); }
/** The cosine of an angle in degrees, exact at multiples of 90.  Python: op.cosdg(x) */
template <class... A> Result cosdg(const A &...given) { return detail::call("cosdg", given...); }
/** Hyperbolic cosine.  Python: op.cosh(x, /) */
template <class... A> Result cosh(const A &...given) { return detail::call("cosh", given...); }
/** 1 - cosine of rows of x and y where the target is 1, max(0, cosine - margin) where it is -1.  Python: op.cosine_embedding(x, y, targets, margin=0.0, reduction='mean') */
template <class... A> Result cosine_embedding(const A &...given) { return detail::call("cosine_embedding", given...); }
/** Cosine of the angle between x and y along an axis; lengths count as at least eps.  Python: op.cosine_similarity(x, y, axis=-1, eps=1e-08) */
template <class... A> Result cosine_similarity(const A &...given) { return detail::call("cosine_similarity", given...); }
/** cos(x) - 1, exact near 0.  Python: op.cosm1(x) */
template <class... A> Result cosm1(const A &...given) { return detail::call("cosm1", given...); }
/** The cotangent of an angle in degrees.  Python: op.cotdg(x) */
template <class... A> Result cotdg(const A &...given) { return detail::call("cotdg", given...); }
/** How many elements over axes are not zero.  Python: op.count_nonzero(x, axis=None, keepdims=False) */
template <class... A> Result count_nonzero(const A &...given) { return detail::call("count_nonzero", given...); }
/** The covariances of the rows of x (with rowvar=False, of its columns), and of y beside them.  Python: op.cov(x, y=None, rowvar=True, bias=False, ddof=None, fweights=None, aweights=None) */
template <class... A> Result cov(const A &...given) { return detail::call("cov", given...); }
/** The vector perpendicular to two vectors of three elements along an axis.  Python: op.cross(x, y, *, axis=-1) */
template <class... A> Result cross(const A &...given) { return detail::call("cross", given...); }
/** Cross entropy of softmax(logits) with labels: class numbers, or probabilities along axis.  Python: op.cross_entropy(logits, labels, axis=-1, reduction='mean', label_smoothing=0.0, ignore_index=None) */
template <class... A> Result cross_entropy(const A &...given) { return detail::call("cross_entropy", given...); }
/** -log of the chance of labels under log_probabilities (batch, time, classes), over all alignments.  Python: op.ctc_loss(log_probabilities, labels, lengths=None, label_lengths=None, blank=0, reduction='mean') */
template <class... A> Result ctc_loss(const A &...given) { return detail::call("ctc_loss", given...); }
/** Running maximum along an axis; NaN from the first NaN on.  Python: op.cummax(x, axis=None, reverse=False) */
template <class... A> Result cummax(const A &...given) { return detail::call("cummax", given...); }
/** Running minimum along an axis; NaN from the first NaN on.  Python: op.cummin(x, axis=None, reverse=False) */
template <class... A> Result cummin(const A &...given) { return detail::call("cummin", given...); }
/** Running product along an axis; integers are multiplied in 64 bits.  Python: op.cumprod(x, axis=None, reverse=False) */
template <class... A> Result cumprod(const A &...given) { return detail::call("cumprod", given...); }
/** Running sum along an axis; integers are summed in 64 bits.  Python: op.cumsum(x, axis=None, reverse=False) */
template <class... A> Result cumsum(const A &...given) { return detail::call("cumsum", given...); }
/** Running product along an axis, after a leading 1 when the initial value is included.  Python: op.cumulative_prod(x, axis=None, dtype=None, include_initial=False) */
template <class... A> Result cumulative_prod(const A &...given) { return detail::call("cumulative_prod", given...); }
/** Running sum along an axis, after a leading 0 when the initial value is included.  Python: op.cumulative_sum(x, axis=None, dtype=None, include_initial=False) */
template <class... A> Result cumulative_sum(const A &...given) { return detail::call("cumulative_sum", given...); }
/** The outputs of a graph that has a derivative of its own.  Python:  */
template <class... A> Result custom(const A &...given) { return detail::call("custom", given...); }
/** The discrete cosine transform of a type from 1 to 4 along an axis; orthogonal with ortho.  Python: op.dct(x, type=2, n=None, axis=-1, norm=None) */
template <class... A> Result dct(const A &...given) { return detail::call("dct", given...); }
/** Degrees as radians.  Python: op.deg2rad(x) */
template <class... A> Result deg2rad(const A &...given) { return detail::call("deg2rad", given...); }
/** Radians as degrees.  Python: op.degrees(x) */
template <class... A> Result degrees(const A &...given) { return detail::call("degrees", given...); }
/** x without the elements at an index, at some, in a slice, or where a mask is true.  Python: op.delete(x, index, axis=None) */
template <class... A> Result delete_(const A &...given) { return detail::call("delete", given...); }
/** The determinant of square matrices.  Python: op.det(x) */
template <class... A> Result det(const A &...given) { return detail::call("det", given...); }
/** The places of the main diagonal of an array with ndim axes of size n.  Python: op.diag_indices(n, ndim=2) */
template <class... A> Result diag_indices(const A &...given) { return detail::call("diag_indices", given...); }
/** The places on the diagonal of a tensor like x, whose axes have one size.  Python: op.diag_indices_from(x) */
template <class... A> Result diag_indices_from(const A &...given) { return detail::call("diag_indices_from", given...); }
/** The matrix with the elements of x on its k-th diagonal.  Python: op.diagflat(x, k=0) */
template <class... A> Result diagflat(const A &...given) { return detail::call("diagflat", given...); }
/** The elements at (i, i + offset) of the matrices in two axes, as a new last axis.  Python: op.diagonal(x, offset=0, axis1=-2, axis2=-1) */
template <class... A> Result diagonal(const A &...given) { return detail::call("diagonal", given...); }
/** Differences of neighbours along an axis, n times; for bools, whether they differ.  Python: op.diff(x, n=1, axis=-1, prepend=None, append=None) */
template <class... A> Result diff(const A &...given) { return detail::call("diff", given...); }
/** Derivative of lgamma.  Python: op.digamma(x, /) */
template <class... A> Result digamma(const A &...given) { return detail::call("digamma", given...); }
/** The bin of each element: i where bins[i-1] <= x < bins[i]; bins may rise or fall.  Python: op.digitize(x, bins, right=False) */
template <class... A> Result digitize(const A &...given) { return detail::call("digitize", given...); }
/** A size, possibly symbolic, as an i64 scalar.  Python: op.dim(size) */
template <class... A> Result dim(const A &...given) { return detail::call("dim", given...); }
/** The periodic sinc sin(n x / 2) / (n sin(x / 2)).  Python: op.diric(x, n) */
template <class... A> Result diric(const A &...given) { return detail::call("diric", given...); }
/** True quotient of two tensors.  Python: op.div(x, y, /) */
template <class... A> Result div(const A &...given) { return detail::call("div", given...); }
/** floor_divide and remainder.  Python: op.divmod(x, y) */
template <class... A> Result divmod(const A &...given) { return detail::call("divmod", given...); }
/** The sum of products over the last axis of x and the last but one of y (the only one of a vector).  Python: op.dot(x, y) */
template <class... A> Result dot(const A &...given) { return detail::call("dot", given...); }
/** x with elements set to 0 with probability p and the others divided by 1 - p.  Python: op.dropout(key, x, p=0.5, training=True) */
template <class... A> Result dropout(const A &...given) { return detail::call("dropout", given...); }
/** split along the third axis.  Python: op.dsplit(x, parts) */
template <class... A> Result dsplit(const A &...given) { return detail::call("dsplit", given...); }
/** Join along the third axis.  Python: op.dstack(xs) */
template <class... A> Result dstack(const A &...given) { return detail::call("dstack", given...); }
/** One level of the periodic wavelet transform: averages and details, each half as long; orthogonal.  Python: op.dwt(x, wavelet='haar', axis=-1) */
template <class... A> Result dwt(const A &...given) { return detail::call("dwt", given...); }
/** The part of x of these sizes from start on, moved to fit inside x.  Python: op.dynamic_slice(x, start, sizes) */
template <class... A> Result dynamic_slice(const A &...given) { return detail::call("dynamic_slice", given...); }
/** x with the part from start on replaced, the part moved to fit inside x.  Python: op.dynamic_update_slice(x, value, start) */
template <class... A> Result dynamic_update_slice(const A &...given) { return detail::call("dynamic_update_slice", given...); }
/** Differences of neighbours of all elements, between what is given for both ends.  Python: op.ediff1d(x, to_end=None, to_begin=None) */
template <class... A> Result ediff1d(const A &...given) { return detail::call("ediff1d", given...); }
/** (w, V): complex eigenvalues, in no order, and eigenvectors of length 1 as columns of V.  Python: op.eig(x) */
template <class... A> Result eig(const A &...given) { return detail::call("eig", given...); }
/** (w, V): ascending eigenvalues and orthonormal eigenvectors of the Hermitian part of x.  Python: op.eigh(x) */
template <class... A> Result eigh(const A &...given) { return detail::call("eigh", given...); }
/** The complex eigenvalues, in no order.  Python: op.eigvals(x) */
template <class... A> Result eigvals(const A &...given) { return detail::call("eigvals", given...); }
/** The eigenvalues of the Hermitian part of x, ascending.  Python: op.eigvalsh(x) */
template <class... A> Result eigvalsh(const A &...given) { return detail::call("eigvalsh", given...); }
/** Sum of products in Einstein's notation, as numpy.einsum: einsum("bij,bjk->bik", a, b).  Python: op.einsum(spec, *xs) */
template <class... A> Result einsum(const A &...given) { return detail::call("einsum", given...); }
/** The complete elliptic integral of the second kind, of the parameter m = k^2 <= 1.  Python: op.ellipe(m) */
template <class... A> Result ellipe(const A &...given) { return detail::call("ellipe", given...); }
/** The complete elliptic integral of the first kind, of the parameter m = k^2 <= 1.  Python: op.ellipk(m) */
template <class... A> Result ellipk(const A &...given) { return detail::call("ellipk", given...); }
/** The complete elliptic integral of the first kind at m = 1 - p.  Python: op.ellipkm1(p) */
template <class... A> Result ellipkm1(const A &...given) { return detail::call("ellipkm1", given...); }
/** x where it is positive, alpha * (exp(x) - 1) elsewhere.  Python: op.elu(x, alpha=1.0) */
template <class... A> Result elu(const A &...given) { return detail::call("elu", given...); }
/** Rows of a table (rows, ...) by their numbers; the derivative adds up at repeated rows.  Python: op.embedding(table, ids) */
template <class... A> Result embedding(const A &...given) { return detail::call("embedding", given...); }
/** The sums, means or maxima of the rows that each bag (batch, n) of ids names.  Python: op.embedding_bag(ids, table, mode='mean', weights=None) */
template <class... A> Result embedding_bag(const A &...given) { return detail::call("embedding_bag", given...); }
/** A tensor whose elements carry no meaning (zeros, so that results stay reproducible).  Python: op.empty(shape, dtype=f32) */
template <class... A> Result empty(const A &...given) { return detail::call("empty", given...); }
/** A tensor of x's shape whose elements carry no meaning.  Python: op.empty_like(x, dtype=None) */
template <class... A> Result empty_like(const A &...given) { return detail::call("empty_like", given...); }
/** x, if ok holds everywhere; else NumericalError with the message, in which {} stands for values.  Python: op.ensure(x, ok, *values, message) */
template <class... A> Result ensure(const A &...given) { return detail::call("ensure", given...); }
/** -x log(x), 0 at 0 and -infinity below.  Python: op.entr(x) */
template <class... A> Result entr(const A &...given) { return detail::call("entr", given...); }
/** Whether x equals y.  Python: op.eq(x, y, /) */
template <class... A> Result eq(const A &...given) { return detail::call("eq", given...); }
/** Error function.  Python: op.erf(x, /) */
template <class... A> Result erf(const A &...given) { return detail::call("erf", given...); }
/** 1 - erf(x), precise for large x.  Python: op.erfc(x, /) */
template <class... A> Result erfc(const A &...given) { return detail::call("erfc", given...); }
/** Inverse of erfc, precise near 0.  Python: op.erfcinv(x, /) */
template <class... A> Result erfcinv(const A &...given) { return detail::call("erfcinv", given...); }
/** exp(x^2) erfc(x), which does not underflow.  Python: op.erfcx(x) */
template <class... A> Result erfcx(const A &...given) { return detail::call("erfcx", given...); }
/** Inverse error function.  Python: op.erfinv(x, /) */
template <class... A> Result erfinv(const A &...given) { return detail::call("erfinv", given...); }
/** Chebyshev's polynomial of the first kind: T_n(cos t) = cos(n t).  Python: op.eval_chebyt(n, x) */
template <class... A> Result eval_chebyt(const A &...given) { return detail::call("eval_chebyt", given...); }
/** Chebyshev's polynomial of the second kind: U_n(cos t) = sin((n + 1) t) / sin(t).  Python: op.eval_chebyu(n, x) */
template <class... A> Result eval_chebyu(const A &...given) { return detail::call("eval_chebyu", given...); }
/** Gegenbauer's polynomial.  Python: op.eval_gegenbauer(n, alpha, x) */
template <class... A> Result eval_gegenbauer(const A &...given) { return detail::call("eval_gegenbauer", given...); }
/** The generalised Laguerre polynomial.  Python: op.eval_genlaguerre(n, alpha, x) */
template <class... A> Result eval_genlaguerre(const A &...given) { return detail::call("eval_genlaguerre", given...); }
/** The Hermite polynomial of physicists.  Python: op.eval_hermite(n, x) */
template <class... A> Result eval_hermite(const A &...given) { return detail::call("eval_hermite", given...); }
/** The Hermite polynomial of probability.  Python: op.eval_hermitenorm(n, x) */
template <class... A> Result eval_hermitenorm(const A &...given) { return detail::call("eval_hermitenorm", given...); }
/** Jacobi's polynomial.  Python: op.eval_jacobi(n, alpha, beta, x) */
template <class... A> Result eval_jacobi(const A &...given) { return detail::call("eval_jacobi", given...); }
/** Laguerre's polynomial.  Python: op.eval_laguerre(n, x) */
template <class... A> Result eval_laguerre(const A &...given) { return detail::call("eval_laguerre", given...); }
/** Legendre's polynomial.  Python: op.eval_legendre(n, x) */
template <class... A> Result eval_legendre(const A &...given) { return detail::call("eval_legendre", given...); }
/** Chebyshev's polynomial of the first kind on [0, 1].  Python: op.eval_sh_chebyt(n, x) */
template <class... A> Result eval_sh_chebyt(const A &...given) { return detail::call("eval_sh_chebyt", given...); }
/** Chebyshev's polynomial of the second kind on [0, 1].  Python: op.eval_sh_chebyu(n, x) */
template <class... A> Result eval_sh_chebyu(const A &...given) { return detail::call("eval_sh_chebyu", given...); }
/** Legendre's polynomial on [0, 1].  Python: op.eval_sh_legendre(n, x) */
template <class... A> Result eval_sh_legendre(const A &...given) { return detail::call("eval_sh_legendre", given...); }
/** e to the power x.  Python: op.exp(x, /) */
template <class... A> Result exp(const A &...given) { return detail::call("exp", given...); }
/** 10 ** x.  Python: op.exp10(x) */
template <class... A> Result exp10(const A &...given) { return detail::call("exp10", given...); }
/** 2 to the power x.  Python: op.exp2(x, /) */
template <class... A> Result exp2(const A &...given) { return detail::call("exp2", given...); }
/** x with new axes of size 1 at these places of the result.  Python: op.expand_dims(x, axis=0) */
template <class... A> Result expand_dims(const A &...given) { return detail::call("expand_dims", given...); }
/** The exponential of square matrices: the sum of x**k / k! over k.  Python: op.expm(x) */
template <class... A> Result expm(const A &...given) { return detail::call("expm", given...); }
/** exp(x) - 1, precise near 0.  Python: op.expm1(x, /) */
template <class... A> Result expm1(const A &...given) { return detail::call("expm1", given...); }
/** The derivative of expm at x in the direction e.  Python: op.expm_frechet(x, e) */
template <class... A> Result expm_frechet(const A &...given) { return detail::call("expm_frechet", given...); }
/** (exp(x) - 1) / x, which is 1 at 0.  Python: op.exprel(x) */
template <class... A> Result exprel(const A &...given) { return detail::call("exprel", given...); }
/** n!, as gamma(n + 1); 0 for negative n.  Python: op.factorial(n) */
template <class... A> Result factorial(const A &...given) { return detail::call("factorial", given...); }
/** The product of x with a matrix in factors, x @ (u * s) @ v, which is never formed.  Python: op.factorized_matmul(x, u, v, s=None) */
template <class... A> Result factorized_matmul(const A &...given) { return detail::call("factorized_matmul", given...); }
/** The distribution function of F with m and n degrees of freedom.  Python: op.fdtr(m, n, x) */
template <class... A> Result fdtr(const A &...given) { return detail::call("fdtr", given...); }
/** 1 - fdtr(m, n, x).  Python: op.fdtrc(m, n, x) */
template <class... A> Result fdtrc(const A &...given) { return detail::call("fdtrc", given...); }
/** The Fourier transform along an axis, of n elements: sum of x[j] exp(-2 pi i j k / n).  Python: op.fft(x, n=None, axis=-1, norm=None) */
template <class... A> Result fft(const A &...given) { return detail::call("fft", given...); }
/** The Fourier transform over two axes.  Python: op.fft2(x, s=None, axes=(-2, -1), norm=None) */
template <class... A> Result fft2(const A &...given) { return detail::call("fft2", given...); }
/** The frequencies of fft of n samples at spacing d: 0, 1, ..., -2, -1 over n * d.  Python: op.fftfreq(n, d=1.0, dtype=f32) */
template <class... A> Result fftfreq(const A &...given) { return detail::call("fftfreq", given...); }
/** The Fourier transform over axes, all unless given, of s elements each.  Python: op.fftn(x, s=None, axes=None, norm=None) */
template <class... A> Result fftn(const A &...given) { return detail::call("fftn", given...); }
/** x with the element of frequency 0 in the middle of axes, all unless given.  Python: op.fftshift(x, axes=None) */
template <class... A> Result fftshift(const A &...given) { return detail::call("fftshift", given...); }
/** x with value on its main diagonal, as a new tensor.  Python: op.fill_diagonal(x, value) */
template <class... A> Result fill_diagonal(const A &...given) { return detail::call("fill_diagonal", given...); }
/** Attention of queries (batch, heads, seq, dim) on a cache that holds their positions last: (batch, seq, heads * dim).  Python: op.flash_attention(q, cache, *, dropout=0.0, causal=True, scale=None, counts=None, key=None) */
template <class... A> Result flash_attention(const A &...given) { return detail::call("flash_attention", given...); }
/** The flat indices of the elements that are not 0; inside jit give size=.  Python: op.flatnonzero(x, size=None, fill=0) */
template <class... A> Result flatnonzero(const A &...given) { return detail::call("flatnonzero", given...); }
/** x with the axes from start to stop joined into one.  Python: op.flatten(x, start=0, stop=-1) */
template <class... A> Result flatten(const A &...given) { return detail::call("flatten", given...); }
/** x with the elements in reverse order along axes.  Python: op.flip(x, axis=None) */
template <class... A> Result flip(const A &...given) { return detail::call("flip", given...); }
/** x with its columns in reverse.  Python: op.fliplr(x) */
template <class... A> Result fliplr(const A &...given) { return detail::call("fliplr", given...); }
/** x with its rows in reverse.  Python: op.flipud(x) */
template <class... A> Result flipud(const A &...given) { return detail::call("flipud", given...); }
/** The bits of a float as an unsigned integer: f32 gives u32, f64 gives u64.  Python: op.float_bits(x, /) */
template <class... A> Result float_bits(const A &...given) { return detail::call("float_bits", given...); }
/** x to the power y in floating point.  Python: op.float_power(x, y) */
template <class... A> Result float_power(const A &...given) { return detail::call("float_power", given...); }
/** Largest whole number not above x.  Python: op.floor(x, /) */
template <class... A> Result floor(const A &...given) { return detail::call("floor", given...); }
/** Largest whole number not above the quotient.  Python: op.floor_divide(x, y, /) */
template <class... A> Result floor_divide(const A &...given) { return detail::call("floor_divide", given...); }
/** The larger of two, and the number where one is NaN.  Python: op.fmax(x, y) */
template <class... A> Result fmax(const A &...given) { return detail::call("fmax", given...); }
/** The smaller of two, and the number where one is NaN.  Python: op.fmin(x, y) */
template <class... A> Result fmin(const A &...given) { return detail::call("fmin", given...); }
/** Remainder with the sign of the dividend.  Python: op.fmod(x, y, /) */
template <class... A> Result fmod(const A &...given) { return detail::call("fmod", given...); }
/** The adjoint of windows: (..., windows, size) added up into (..., *shape).  Python: op.fold_windows(x, shape, stride=1, dilation=1) */
template <class... A> Result fold_windows(const A &...given) { return detail::call("fold_windows", given...); }
/** x = body_fn(i, x) for i from lower up to upper, starting from init.  Python: op.fori_loop(lower, upper, body_fn, init) */
template <class... A> Result fori_loop(const A &...given) { return detail::call("fori_loop", given...); }
/** The pieces of `size` elements along the last axis that start every `hop` elements.  Python: op.frame(x, size, hop) */
template <class... A> Result frame(const A &...given) { return detail::call("frame", given...); }
/** The float that bits make: u32 gives f32, u64 gives f64.  Python: op.from_bits(x, /) */
template <class... A> Result from_bits(const A &...given) { return detail::call("from_bits", given...); }
/** f of the coordinates of every place: fromfunction(f, (2, 3)) is f(i, j) of two 2 x 3 tensors.  Python: op.fromfunction(f, shape, dtype=<class 'float'>) */
template <class... A> Result fromfunction(const A &...given) { return detail::call("fromfunction", given...); }
/** A tensor of this shape filled with one number, or with an array that is repeated along its axes.  Python: op.full(shape, value, dtype=None) */
template <class... A> Result full(const A &...given) { return detail::call("full", given...); }
/** A tensor of x's shape, and dtype unless given, filled with one number; on a mesh, in x's layout.  Python: op.full_like(x, value, dtype=None) */
template <class... A> Result full_like(const A &...given) { return detail::call("full_like", given...); }
/** Gamma function.  Python: op.gamma(x, /) */
template <class... A> Result gamma(const A &...given) { return detail::call("gamma", given...); }
/** The lower incomplete gamma function divided by gamma(a).  Python: op.gammainc(a, x) */
template <class... A> Result gammainc(const A &...given) { return detail::call("gammainc", given...); }
/** The upper incomplete gamma function divided by gamma(a).  Python: op.gammaincc(a, x) */
template <class... A> Result gammaincc(const A &...given) { return detail::call("gammaincc", given...); }
/** The sign of the gamma function: -1 between -1 and 0, and so on; NaN at whole numbers below 0.  Python: op.gammasgn(x) */
template <class... A> Result gammasgn(const A &...given) { return detail::call("gammasgn", given...); }
/** The elements of x at indices along axes: axes of the indices first, then the others of x.  Python: op.gather(x, *indices, axes=None) */
template <class... A> Result gather(const A &...given) { return detail::call("gather", given...); }
/** Tangents of the values of clusters and of turns of their vectors; its transpose checks.  Python:  */
template <class... A> Result gauged(const A &...given) { return detail::call("gauged", given...); }
/** (log var + (targets - mean)**2 / var) / 2, with variances of at least eps; full adds log(2 pi) / 2.  Python: op.gaussian_nll(mean, targets, var, full=False, eps=1e-06, reduction='mean') */
template <class... A> Result gaussian_nll(const A &...given) { return detail::call("gaussian_nll", given...); }
/** The greatest common divisor of integers.  Python: op.gcd(x, y) */
template <class... A> Result gcd(const A &...given) { return detail::call("gcd", given...); }
/** The distribution function of the gamma distribution of rate a and shape b.  Python: op.gdtr(a, b, x) */
template <class... A> Result gdtr(const A &...given) { return detail::call("gdtr", given...); }
/** 1 - gdtr(a, b, x).  Python: op.gdtrc(a, b, x) */
template <class... A> Result gdtrc(const A &...given) { return detail::call("gdtrc", given...); }
/** Whether x is at least y.  Python: op.ge(x, y, /) */
template <class... A> Result ge(const A &...given) { return detail::call("ge", given...); }
/** The gelu of the first half of x along an axis times the second half.  Python: op.geglu(x, axis=-1) */
template <class... A> Result geglu(const A &...given) { return detail::call("geglu", given...); }
/** x times the normal distribution function of x; approximate="tanh" replaces erf by a tanh.  Python: op.gelu(x, approximate='none') */
template <class... A> Result gelu(const A &...given) { return detail::call("gelu", given...); }
/** Numbers with even ratios from start to stop, both positive or both negative.  Python: op.geomspace(start, stop, num=50, endpoint=True) */
template <class... A> Result geomspace(const A &...given) { return detail::call("geomspace", given...); }
/** The mean of each channel over all its positions.  Python: op.global_avg_pool(x, keepdims=True) */
template <class... A> Result global_avg_pool(const A &...given) { return detail::call("global_avg_pool", given...); }
/** The largest element of each channel over all its positions.  Python: op.global_max_pool(x, keepdims=True) */
template <class... A> Result global_max_pool(const A &...given) { return detail::call("global_max_pool", given...); }
/** The first half of x along an axis times the sigmoid of the second half.  Python: op.glu(x, axis=-1) */
template <class... A> Result glu(const A &...given) { return detail::call("glu", given...); }
/** The slope of samples along each axis, or along one, by differences of neighbours.  Python: op.gradient(f, *spacing, axis=None, edge_order=1) */
template <class... A> Result gradient(const A &...given) { return detail::call("gradient", given...); }
/** x (batch, channels, ...) read at a grid (batch, ..., rank) of coordinates from -1 to 1.  Python: op.grid_sample(x, grid, mode='linear', padding='zeros', align_corners=False) */
template <class... A> Result grid_sample(const A &...given) { return detail::call("grid_sample", given...); }
/** layernorm over each group of channels with its positions, times gain plus bias per channel.  Python: op.groupnorm(x, groups, gain=None, bias=None, eps=1e-05) */
template <class... A> Result groupnorm(const A &...given) { return detail::call("groupnorm", given...); }
/** Whether x is greater than y.  Python: op.gt(x, y, /) */
template <class... A> Result gt(const A &...given) { return detail::call("gt", given...); }
/** A sample of a relaxed one-hot vector; hard: one-hot, with the slope of the relaxed one.  Python: op.gumbel_softmax(key, logits, tau=1.0, hard=False, axis=-1) */
template <class... A> Result gumbel_softmax(const A &...given) { return detail::call("gumbel_softmax", given...); }
/** The Hamming window of n points.  Python: op.hamming(n) */
template <class... A> Result hamming(const A &...given) { return detail::call("hamming", given...); }
/** sin(pi k / n)**2, or over n - 1 when not periodic: the window of Julius von Hann.  Python: op.hann_window(n, periodic=True, dtype=f32) */
template <class... A> Result hann_window(const A &...given) { return detail::call("hann_window", given...); }
/** The Hann window of n points, both ends 0.  Python: op.hanning(n) */
template <class... A> Result hanning(const A &...given) { return detail::call("hanning", given...); }
/** x where it is further than width from 0, 0 elsewhere.  Python: op.hardshrink(x, width=0.5) */
template <class... A> Result hardshrink(const A &...given) { return detail::call("hardshrink", given...); }
/** (x + 3) / 6, but at least 0 and at most 1.  Python: op.hardsigmoid(x, /) */
template <class... A> Result hardsigmoid(const A &...given) { return detail::call("hardsigmoid", given...); }
/** x times hardsigmoid(x).  Python: op.hardswish(x, /) */
template <class... A> Result hardswish(const A &...given) { return detail::call("hardswish", given...); }
/** x, but at least low and at most high; the derivative at both ends is 0.  Python: op.hardtanh(x, low=-1.0, high=1.0) */
template <class... A> Result hardtanh(const A &...given) { return detail::call("hardtanh", given...); }
/** 0 below zero, 1 above, and at_zero there.  Python: op.heaviside(x, at_zero) */
template <class... A> Result heaviside(const A &...given) { return detail::call("heaviside", given...); }
/** The real Fourier transform of a signal of which x is the first half, the other conjugate.  Python: op.hfft(x, n=None, axis=-1, norm=None) */
template <class... A> Result hfft(const A &...given) { return detail::call("hfft", given...); }
/** max(0, margin - targets * scores) with targets -1 or 1.  Python: op.hinge(scores, targets, margin=1.0, reduction='mean') */
template <class... A> Result hinge(const A &...given) { return detail::call("hinge", given...); }
/** x where the target is 1, max(0, margin - x) where it is -1: x is a distance.  Python: op.hinge_embedding(x, targets, margin=1.0, reduction='mean') */
template <class... A> Result hinge_embedding(const A &...given) { return detail::call("hinge_embedding", given...); }
/** x where the target is 1, max(0, margin - x) where it is -1: x is a distance.  Python: op.hinge_embedding_loss(x, targets, margin=1.0, reduction='mean') */
template <class... A> Result hinge_embedding_loss(const A &...given) { return detail::call("hinge_embedding_loss", given...); }
/** How many elements fall in each bin, and the edges; the last bin has both of its edges.  Python: op.histogram(x, bins=10, range=None, weights=None, density=False) */
template <class... A> Result histogram(const A &...given) { return detail::call("histogram", given...); }
/** How many pairs (x, y) fall in each box of a grid, and the edges along both axes.  Python: op.histogram2d(x, y, bins=10, range=None, weights=None, density=False) */
template <class... A> Result histogram2d(const A &...given) { return detail::call("histogram2d", given...); }
/** The edges of the bins of histogram: as given, or evenly from the least to the largest element.  Python: op.histogram_bin_edges(x, bins=10, range=None) */
template <class... A> Result histogram_bin_edges(const A &...given) { return detail::call("histogram_bin_edges", given...); }
/** How many of the points, (number, axes), fall in each box of a grid, and the edges along each axis.  Python: op.histogramdd(points, bins=10, range=None, weights=None, density=False) */
template <class... A> Result histogramdd(const A &...given) { return detail::call("histogramdd", given...); }
/** What to(*values) gives for NumPy arrays, as arrays of these shapes and dtypes.  Python: op.host_call(*values, to, shapes, dtypes) */
template <class... A> Result host_call(const A &...given) { return detail::call("host_call", given...); }
/** split along the second axis, a vector along its only one.  Python: op.hsplit(x, parts) */
template <class... A> Result hsplit(const A &...given) { return detail::call("hsplit", given...); }
/** Join along the second axis, vectors along their only one.  Python: op.hstack(xs) */
template <class... A> Result hstack(const A &...given) { return detail::call("hstack", given...); }
/** Half the squared difference up to delta, and delta times the absolute one beyond.  Python: op.huber(x, y, delta=1.0, reduction='mean') */
template <class... A> Result huber(const A &...given) { return detail::call("huber", given...); }
/** Length of the vector (x, y).  Python: op.hypot(x, y, /) */
template <class... A> Result hypot(const A &...given) { return detail::call("hypot", given...); }
/** The modified Bessel function of order 0.  Python: op.i0(x) */
template <class... A> Result i0(const A &...given) { return detail::call("i0", given...); }
/** exp(-|x|) times the modified Bessel function of order 0.  Python: op.i0e(x) */
template <class... A> Result i0e(const A &...given) { return detail::call("i0e", given...); }
/** The modified Bessel function of order 1.  Python: op.i1(x) */
template <class... A> Result i1(const A &...given) { return detail::call("i1", given...); }
/** exp(-|x|) times the modified Bessel function of order 1.  Python: op.i1e(x) */
template <class... A> Result i1e(const A &...given) { return detail::call("i1e", given...); }
/** The inverse of dct of the same type and norm.  Python: op.idct(x, type=2, n=None, axis=-1, norm=None) */
template <class... A> Result idct(const A &...given) { return detail::call("idct", given...); }
/** The identity matrix as a tensor.  Python: op.identity(n, dtype=f32) */
template <class... A> Result identity(const A &...given) { return detail::call("identity", given...); }
/** The inverse of dwt: what has these averages and details.  Python: op.idwt(low, high, wavelet='haar', axis=-1) */
template <class... A> Result idwt(const A &...given) { return detail::call("idwt", given...); }
/** The inverse of fft along an axis.  Python: op.ifft(x, n=None, axis=-1, norm=None) */
template <class... A> Result ifft(const A &...given) { return detail::call("ifft", given...); }
/** The inverse of fft2.  Python: op.ifft2(x, s=None, axes=(-2, -1), norm=None) */
template <class... A> Result ifft2(const A &...given) { return detail::call("ifft2", given...); }
/** The inverse of fftn.  Python: op.ifftn(x, s=None, axes=None, norm=None) */
template <class... A> Result ifftn(const A &...given) { return detail::call("ifftn", given...); }
/** The inverse of fftshift.  Python: op.ifftshift(x, axes=None) */
template <class... A> Result ifftshift(const A &...given) { return detail::call("ifftshift", given...); }
/** The lower incomplete gamma function divided by gamma(a).  Python: op.igamma(a, x) */
template <class... A> Result igamma(const A &...given) { return detail::call("igamma", given...); }
/** The upper incomplete gamma function divided by gamma(a).  Python: op.igammac(a, x) */
template <class... A> Result igammac(const A &...given) { return detail::call("igammac", given...); }
/** The inverse of hfft.  Python: op.ihfft(x, n=None, axis=-1, norm=None) */
template <class... A> Result ihfft(const A &...given) { return detail::call("ihfft", given...); }
/** Imaginary part.  Python: op.imag(x, /) */
template <class... A> Result imag(const A &...given) { return detail::call("imag", given...); }
/** x[key]: numbers, slices, new axes, integer tensors and masks, as in NumPy.  Python: op.index(x, key) */
template <class... A> Result index(const A &...given) { return detail::call("index", given...); }
/** The index along each axis of every element of a shape, one after another.  Python: op.indices(shape) */
template <class... A> Result indices(const A &...given) { return detail::call("indices", given...); }
/** The sum of products over the last axes.  Python: op.inner(x, y) */
template <class... A> Result inner(const A &...given) { return detail::call("inner", given...); }
/** values before the element at an index.  Python: op.insert(x, index, values, axis=None) */
template <class... A> Result insert(const A &...given) { return detail::call("insert", given...); }
/** layernorm over the positions of each channel: groupnorm with as many groups as channels.  Python: op.instancenorm(x, gain=None, bias=None, eps=1e-05) */
template <class... A> Result instancenorm(const A &...given) { return detail::call("instancenorm", given...); }
/** fp at x, linear between the rising points xp; beyond them its ends, or left and right.  Python: op.interp(x, xp, fp, left=None, right=None) */
template <class... A> Result interp(const A &...given) { return detail::call("interp", given...); }
/** resize under its other name.  Python: op.interpolate(x, size=None, scale=None, mode='nearest', align_corners=False) */
template <class... A> Result interpolate(const A &...given) { return detail::call("interpolate", given...); }
/** The elements of both, in order, once each; its size depends on the data.  Python: op.intersect1d(x, y) */
template <class... A> Result intersect1d(const A &...given) { return detail::call("intersect1d", given...); }
/** The inverse of square matrices.  Python: op.inv(x) */
template <class... A> Result inv(const A &...given) { return detail::call("inv", given...); }
/** The x of which y = boxcox(x, power).  Python: op.inv_boxcox(y, power) */
template <class... A> Result inv_boxcox(const A &...given) { return detail::call("inv_boxcox", given...); }
/** The x of which y = boxcox1p(x, power).  Python: op.inv_boxcox1p(y, power) */
template <class... A> Result inv_boxcox1p(const A &...given) { return detail::call("inv_boxcox1p", given...); }
/** Each element's own index along an axis.  Python: op.iota(shape, axis=0, dtype=i64) */
template <class... A> Result iota(const A &...given) { return detail::call("iota", given...); }
/** The real tensor of n elements, 2 * (m - 1) unless given, whose rfft is x.  Python: op.irfft(x, n=None, axis=-1, norm=None) */
template <class... A> Result irfft(const A &...given) { return detail::call("irfft", given...); }
/** The inverse of rfft2.  Python: op.irfft2(x, s=None, axes=(-2, -1), norm=None) */
template <class... A> Result irfft2(const A &...given) { return detail::call("irfft2", given...); }
/** The inverse of rfftn.  Python: op.irfftn(x, s=None, axes=None, norm=None) */
template <class... A> Result irfftn(const A &...given) { return detail::call("irfftn", given...); }
/** Where |x - y| <= atol + rtol |y|; infinities are close to themselves.  Python: op.isclose(x, y, rtol=1e-05, atol=1e-08, equal_nan=False) */
template <class... A> Result isclose(const A &...given) { return detail::call("isclose", given...); }
/** Where the imaginary part is not 0.  Python: op.iscomplex(x) */
template <class... A> Result iscomplex(const A &...given) { return detail::call("iscomplex", given...); }
/** Whether x is neither infinite nor NaN.  Python: op.isfinite(x, /) */
template <class... A> Result isfinite(const A &...given) { return detail::call("isfinite", given...); }
/** Whether each element of x equals one of the others.  Python: op.isin(x, among, *, invert=False) */
template <class... A> Result isin(const A &...given) { return detail::call("isin", given...); }
/** Whether x is infinite.  Python: op.isinf(x, /) */
template <class... A> Result isinf(const A &...given) { return detail::call("isinf", given...); }
/** Whether x is not a number.  Python: op.isnan(x, /) */
template <class... A> Result isnan(const A &...given) { return detail::call("isnan", given...); }
/** Where x is negative infinity.  Python: op.isneginf(x) */
template <class... A> Result isneginf(const A &...given) { return detail::call("isneginf", given...); }
/** Where x is positive infinity.  Python: op.isposinf(x) */
template <class... A> Result isposinf(const A &...given) { return detail::call("isposinf", given...); }
/** Where the imaginary part is 0.  Python: op.isreal(x) */
template <class... A> Result isreal(const A &...given) { return detail::call("isreal", given...); }
/** The signal of `length` elements whose stft is nearest to x; onesided for a real signal.  Python: op.istft(x, window, hop=None, center=True, norm=None, length=None, onesided=True) */
template <class... A> Result istft(const A &...given) { return detail::call("istft", given...); }
/** The Kaiser window of n points.  Python: op.kaiser(n, beta) */
template <class... A> Result kaiser(const A &...given) { return detail::call("kaiser", given...); }
/** The results of a hand-written kernel, whose Tile IR is given as text.  Python:  */
template <class... A> Result kernel(const A &...given) { return detail::call("kernel", given...); }
/** p * (log p - log q), element by element before the reduction; log_target: p is log p.  Python: op.kl_div(log_q, p, log_target=False, reduction='mean') */
template <class... A> Result kl_div(const A &...given) { return detail::call("kl_div", given...); }
/** Kronecker product: every element of a times the whole of b.  Python: op.kron(a, b) */
template <class... A> Result kron(const A &...given) { return detail::call("kron", given...); }
/** Absolute value of the difference: mae under its other name.  Python: op.l1_loss(x, y, reduction='mean') */
template <class... A> Result l1_loss(const A &...given) { return detail::call("l1_loss", given...); }
/** Euclidean norm over axes.  Python: op.l2norm(x, axis=None, keepdims=False) */
template <class... A> Result l2norm(const A &...given) { return detail::call("l2norm", given...); }
/** (x - mean) / sqrt(var + eps) along axes, times gain plus bias, which have those axes.  Python: op.layernorm(x, gain=None, bias=None, axis=-1, eps=1e-05) */
template <class... A> Result layernorm(const A &...given) { return detail::call("layernorm", given...); }
/** layernorm that no finite row overflows; a constant row gives the bias, even for eps=0.  Python: op.layernorm_safe(x, gain=None, bias=None, axis=-1, eps=1e-05) */
template <class... A> Result layernorm_safe(const A &...given) { return detail::call("layernorm_safe", given...); }
/** The least common multiple of integers.  Python: op.lcm(x, y) */
template <class... A> Result lcm(const A &...given) { return detail::call("lcm", given...); }
/** x times 2 to an integer power.  Python: op.ldexp(x, exponent) */
template <class... A> Result ldexp(const A &...given) { return detail::call("ldexp", given...); }
/** Whether x is at most y.  Python: op.le(x, y, /) */
template <class... A> Result le(const A &...given) { return detail::call("le", given...); }
/** x where it is positive, slope times x elsewhere.  Python: op.leaky_relu(x, slope=0.01) */
template <class... A> Result leaky_relu(const A &...given) { return detail::call("leaky_relu", given...); }
/** The order by the last key, ties by the one before, and so on.  Python: op.lexsort(keys, axis=-1) */
template <class... A> Result lexsort(const A &...given) { return detail::call("lexsort", given...); }
/** Logarithm of the absolute value of the gamma function.  Python: op.lgamma(x, /) */
template <class... A> Result lgamma(const A &...given) { return detail::call("lgamma", given...); }
/** x @ w.mT + bias: w is (out, in), as PyTorch keeps it.  Python: op.linear(x, w, bias=None) */
template <class... A> Result linear(const A &...given) { return detail::call("linear", given...); }
/** y[i] = a[i] * y[i-1] + b[i] along an axis, starting from 0.  Python: op.linear_recurrence(a, b, axis=-1, reverse=False) */
template <class... A> Result linear_recurrence(const A &...given) { return detail::call("linear_recurrence", given...); }
/** So many numbers evenly spaced from start to stop, along a new first axis.  Python: op.linspace(start, stop, num, dtype=None, endpoint=True) */
template <class... A> Result linspace(const A &...given) { return detail::call("linspace", given...); }
/** x over (k + alpha times the mean of squares of `size` neighbouring channels) to the power beta.  Python: op.local_response_norm(x, size, alpha=0.0001, beta=0.75, k=1.0) */
template <class... A> Result local_response_norm(const A &...given) { return detail::call("local_response_norm", given...); }
/** Natural logarithm.  Python: op.log(x, /) */
template <class... A> Result log(const A &...given) { return detail::call("log", given...); }
/** Logarithm to base 10.  Python: op.log10(x, /) */
template <class... A> Result log10(const A &...given) { return detail::call("log10", given...); }
/** log(1 - exp(-x)) for positive x.  Python: op.log1mexp(x) */
template <class... A> Result log1mexp(const A &...given) { return detail::call("log1mexp", given...); }
/** log(1 + x), precise near 0.  Python: op.log1p(x, /) */
template <class... A> Result log1p(const A &...given) { return detail::call("log1p", given...); }
/** Logarithm to base 2.  Python: op.log2(x, /) */
template <class... A> Result log2(const A &...given) { return detail::call("log2", given...); }
/** The logarithm of ndtr, exact far to the left too.  Python: op.log_ndtr(x) */
template <class... A> Result log_ndtr(const A &...given) { return detail::call("log_ndtr", given...); }
/** Logarithm of sigmoid(x), without overflow.  Python: op.log_sigmoid(x, /) */
template <class... A> Result log_sigmoid(const A &...given) { return detail::call("log_sigmoid", given...); }
/** Logarithm of softmax(x): x less its logsumexp along axes.  Python: op.log_softmax(x, axis=-1) */
template <class... A> Result log_softmax(const A &...given) { return detail::call("log_softmax", given...); }
/** log(exp(x) + exp(y)) without overflow.  Python: op.logaddexp(x, y, /) */
template <class... A> Result logaddexp(const A &...given) { return detail::call("logaddexp", given...); }
/** log2(2^x + 2^y).  Python: op.logaddexp2(x, y) */
template <class... A> Result logaddexp2(const A &...given) { return detail::call("logaddexp2", given...); }
/** log of the running sum of exp(x) along an axis, without overflow.  Python: op.logcumsumexp(x, axis=None, reverse=False) */
template <class... A> Result logcumsumexp(const A &...given) { return detail::call("logcumsumexp", given...); }
/** Logarithm of a gamma variable of shape alpha for every element of a counter.  Python:  */
template <class... A> Result loggamma_sample(const A &...given) { return detail::call("loggamma_sample", given...); }
/** How the logarithm of a gamma variable moves with its shape alpha at a fixed probability.  Python:  */
template <class... A> Result loggamma_slope(const A &...given) { return detail::call("loggamma_slope", given...); }
/** Whether both are true.  Python: op.logical_and(x, y, /) */
template <class... A> Result logical_and(const A &...given) { return detail::call("logical_and", given...); }
/** Whether it is false.  Python: op.logical_not(x, /) */
template <class... A> Result logical_not(const A &...given) { return detail::call("logical_not", given...); }
/** Whether either is true.  Python: op.logical_or(x, y, /) */
template <class... A> Result logical_or(const A &...given) { return detail::call("logical_or", given...); }
/** Whether just one is true.  Python: op.logical_xor(x, y, /) */
template <class... A> Result logical_xor(const A &...given) { return detail::call("logical_xor", given...); }
/** log(p / (1 - p)).  Python: op.logit(p) */
template <class... A> Result logit(const A &...given) { return detail::call("logit", given...); }
/** The logarithm of square matrices: expm(logm(x)) is x.  Python: op.logm(x) */
template <class... A> Result logm(const A &...given) { return detail::call("logm", given...); }
/** The logarithm of the mean of exp(x).  Python: op.logmeanexp(x, axis=None, keepdims=False) */
template <class... A> Result logmeanexp(const A &...given) { return detail::call("logmeanexp", given...); }
/** base to evenly spaced powers.  Python: op.logspace(start, stop, num=50, endpoint=True, base=10.0) */
template <class... A> Result logspace(const A &...given) { return detail::call("logspace", given...); }
/** log(sum(exp(x))) over axes without overflow; -inf where every element is.  Python: op.logsumexp(x, axis=None, keepdims=False) */
template <class... A> Result logsumexp(const A &...given) { return detail::call("logsumexp", given...); }
/** logsumexp, with the derivative softmax_safe(x): zero for a row of -inf.  Python: op.logsumexp_safe(x, axis=None, keepdims=False) */
template <class... A> Result logsumexp_safe(const A &...given) { return detail::call("logsumexp_safe", given...); }
/** (sum of |x| ** p) ** (1 / p) over each window.  Python: op.lp_pool(x, size, p=2.0, stride=None, ceil_mode=False) */
template <class... A> Result lp_pool(const A &...given) { return detail::call("lp_pool", given...); }
/** The shortest x among those that make a @ x - b shortest; b is a vector or matrices.  Python: op.lstsq(a, b, rtol=None) */
template <class... A> Result lstsq(const A &...given) { return detail::call("lstsq", given...); }
/** Whether x is less than y.  Python: op.lt(x, y, /) */
template <class... A> Result lt(const A &...given) { return detail::call("lt", given...); }
/** (perm, L, U): rows perm of x are L @ U, with ones on the diagonal of L and pivots by size.  Python: op.lu(x) */
template <class... A> Result lu(const A &...given) { return detail::call("lu", given...); }
/** Absolute value of the difference.  Python: op.mae(x, y, reduction='mean') */
template <class... A> Result mae(const A &...given) { return detail::call("mae", given...); }
/** max(0, margin - targets * (x - y)): x ranks above y where the target is 1, below where -1.  Python: op.margin_ranking(x, y, targets, margin=0.0, reduction='mean') */
template <class... A> Result margin_ranking(const A &...given) { return detail::call("margin_ranking", given...); }
/** Matrix product over the last two axes; the axes before them broadcast.  Python: op.matmul(a, b, *, tile_shape=None, schedule=None) */
template <class... A> Result matmul(const A &...given) { return detail::call("matmul", given...); }
/** Square matrices with the last axis of x on a diagonal and zeros elsewhere.  Python: op.matrix_diag(x, offset=0) */
template <class... A> Result matrix_diag(const A &...given) { return detail::call("matrix_diag", given...); }
/** The principal `sqrt` or `log`, or the `sign`, of square matrices.  Python: op.matrix_function(x, name) */
template <class... A> Result matrix_function(const A &...given) { return detail::call("matrix_function", given...); }
/** The derivative of matrix_function at x in the direction e.  Python: op.matrix_function_frechet(x, e, name) */
template <class... A> Result matrix_function_frechet(const A &...given) { return detail::call("matrix_function_frechet", given...); }
/** Matrix norm: fro, nuc, 2 and -2 by singular values, 1, -1, inf and -inf by absolute sums.  Python: op.matrix_norm(x, ord='fro', *, keepdims=False) */
template <class... A> Result matrix_norm(const A &...given) { return detail::call("matrix_norm", given...); }
/** The product of n copies of a square matrix, or of its inverse when n is negative.  Python: op.matrix_power(x, n) */
template <class... A> Result matrix_power(const A &...given) { return detail::call("matrix_power", given...); }
/** How many singular values are above rtol times the largest, or above tol.  Python: op.matrix_rank(x, *, rtol=None, tol=None) */
template <class... A> Result matrix_rank(const A &...given) { return detail::call("matrix_rank", given...); }
/** x with its last two axes swapped.  Python: op.matrix_transpose(x) */
template <class... A> Result matrix_transpose(const A &...given) { return detail::call("matrix_transpose", given...); }
/** Matrices times vectors, over the last axes.  Python: op.matvec(a, x) */
template <class... A> Result matvec(const A &...given) { return detail::call("matvec", given...); }
/** Largest element over axes; NaN if any is.  Python: op.max(x, axis=None, keepdims=False) */
template <class... A> Result max(const A &...given) { return detail::call("max", given...); }
/** The largest element of each window; the stride is the window's size unless given.  Python: op.max_pool(x, size, stride=None, padding=0, dilation=1, ceil_mode=False) */
template <class... A> Result max_pool(const A &...given) { return detail::call("max_pool", given...); }
/** max_pool over one spatial axis.  Python: op.max_pool1d(x, size, stride=None, padding=0, dilation=1, ceil_mode=False) */
template <class... A> Result max_pool1d(const A &...given) { return detail::call("max_pool1d", given...); }
/** max_pool over two spatial axes.  Python: op.max_pool2d(x, size, stride=None, padding=0, dilation=1, ceil_mode=False) */
template <class... A> Result max_pool2d(const A &...given) { return detail::call("max_pool2d", given...); }
/** max_pool over three spatial axes.  Python: op.max_pool3d(x, size, stride=None, padding=0, dilation=1, ceil_mode=False) */
template <class... A> Result max_pool3d(const A &...given) { return detail::call("max_pool3d", given...); }
/** The cotangent of x for a cotangent of y = max_pool(x): elements of a window that equal y share it.  Python:  */
template <class... A> Result max_pool_grad(const A &...given) { return detail::call("max_pool_grad", given...); }
/** The tangent of y = max_pool(x) for a tangent t of x.  Python:  */
template <class... A> Result max_pool_tangent(const A &...given) { return detail::call("max_pool_tangent", given...); }
/** The larger of two tensors; NaN if either is.  Python: op.maximum(x, y, /) */
template <class... A> Result maximum(const A &...given) { return detail::call("maximum", given...); }
/** Arithmetic mean over axes.  Python: op.mean(x, axis=None, keepdims=False) */
template <class... A> Result mean(const A &...given) { return detail::call("mean", given...); }
/** The middle of the sorted elements, the mean of the two middle ones of an even number.  Python: op.median(x, axis=None, keepdims=False) */
template <class... A> Result median(const A &...given) { return detail::call("median", given...); }
/** Coordinates of a grid: one tensor per axis given; 'xy' swaps the first two axes, 'ij' not.  Python: op.meshgrid(*xs, indexing='xy') */
template <class... A> Result meshgrid(const A &...given) { return detail::call("meshgrid", given...); }
/** Smallest element over axes; NaN if any is.  Python: op.min(x, axis=None, keepdims=False) */
template <class... A> Result min(const A &...given) { return detail::call("min", given...); }
/** The smaller of two tensors; NaN if either is.  Python: op.minimum(x, y, /) */
template <class... A> Result minimum(const A &...given) { return detail::call("minimum", given...); }
/** x times tanh(softplus(x)).  Python: op.mish(x, /) */
template <class... A> Result mish(const A &...given) { return detail::call("mish", given...); }
/** The fraction and the whole part, both with the sign of x.  Python: op.modf(x) */
template <class... A> Result modf(const A &...given) { return detail::call("modf", given...); }
/** The rows of moe_dispatch in the order of tokens again, those of a token added with its weights.  Python: op.moe_combine(rows, order, weights) */
template <class... A> Result moe_combine(const A &...given) { return detail::call("moe_combine", given...); }
/** Rows of tokens sorted by expert, how many each expert has, and the order for moe_combine.  Python: op.moe_dispatch(tokens, chosen, *, experts) */
template <class... A> Result moe_dispatch(const A &...given) { return detail::call("moe_dispatch", given...); }
/** Weights and numbers (tokens, top_k) of the likeliest experts, of scores (tokens, experts).  Python: op.moe_router(scores, top_k, normalise=True) */
template <class... A> Result moe_router(const A &...given) { return detail::call("moe_router", given...); }
/** x with axes moved to other places.  Python: op.moveaxis(x, source, destination) */
template <class... A> Result moveaxis(const A &...given) { return detail::call("moveaxis", given...); }
/** Square of the difference.  Python: op.mse(x, y, reduction='mean') */
template <class... A> Result mse(const A &...given) { return detail::call("mse", given...); }
/** Product of two tensors, element by element.  Python: op.mul(x, y, /) */
template <class... A> Result mul(const A &...given) { return detail::call("mul", given...); }
/** A product of several matrices in the order that takes the fewest operations.  Python: op.multi_dot(xs) */
template <class... A> Result multi_dot(const A &...given) { return detail::call("multi_dot", given...); }
/** The sum over wrong classes of max(0, margin - x[label] + x[class]) ** p, over the number of classes.  Python: op.multi_margin(x, labels, p=1, margin=1.0, reduction='mean') */
template <class... A> Result multi_margin(const A &...given) { return detail::call("multi_margin", given...); }
/** The sum over wrong classes of max(0, margin - x[label] + x[class]) ** p, over the number of classes.  Python: op.multi_margin_loss(x, labels, p=1, margin=1.0, reduction='mean') */
template <class... A> Result multi_margin_loss(const A &...given) { return detail::call("multi_margin_loss", given...); }
/** The logarithm of the gamma function of d dimensions.  Python: op.multigammaln(a, d) */
template <class... A> Result multigammaln(const A &...given) { return detail::call("multigammaln", given...); }
/** x with NaN and infinities replaced; infinities by the ends of the dtype where nothing is given.  Python: op.nan_to_num(x, nan=0.0, posinf=None, neginf=None) */
template <class... A> Result nan_to_num(const A &...given) { return detail::call("nan_to_num", given...); }
/** Where the largest element that is a number is.  Python: op.nanargmax(x, axis=None, keepdims=False) */
template <class... A> Result nanargmax(const A &...given) { return detail::call("nanargmax", given...); }
/** Where the least element that is a number is.  Python: op.nanargmin(x, axis=None, keepdims=False) */
template <class... A> Result nanargmin(const A &...given) { return detail::call("nanargmin", given...); }
/** The running product, NaN as 1.  Python: op.nancumprod(x, axis=None) */
template <class... A> Result nancumprod(const A &...given) { return detail::call("nancumprod", given...); }
/** The running sum, NaN as 0.  Python: op.nancumsum(x, axis=None) */
template <class... A> Result nancumsum(const A &...given) { return detail::call("nancumsum", given...); }
/** The largest element that is a number; NaN where there is none.  Python: op.nanmax(x, axis=None, keepdims=False) */
template <class... A> Result nanmax(const A &...given) { return detail::call("nanmax", given...); }
/** The mean of the elements that are numbers.  Python: op.nanmean(x, axis=None, keepdims=False) */
template <class... A> Result nanmean(const A &...given) { return detail::call("nanmean", given...); }
/** median of the elements that are numbers.  Python: op.nanmedian(x, axis=None, keepdims=False) */
template <class... A> Result nanmedian(const A &...given) { return detail::call("nanmedian", given...); }
/** The least element that is a number; NaN where there is none.  Python: op.nanmin(x, axis=None, keepdims=False) */
template <class... A> Result nanmin(const A &...given) { return detail::call("nanmin", given...); }
/** percentile of the elements that are numbers.  Python: op.nanpercentile(x, q, axis=None, method='linear', keepdims=False) */
template <class... A> Result nanpercentile(const A &...given) { return detail::call("nanpercentile", given...); }
/** The product, NaN as 1.  Python: op.nanprod(x, axis=None, keepdims=False) */
template <class... A> Result nanprod(const A &...given) { return detail::call("nanprod", given...); }
/** quantile of the elements that are numbers.  Python: op.nanquantile(x, q, axis=None, method='linear', keepdims=False) */
template <class... A> Result nanquantile(const A &...given) { return detail::call("nanquantile", given...); }
/** The standard deviation of the elements that are numbers.  Python: op.nanstd(x, axis=None, correction=0.0, keepdims=False) */
template <class... A> Result nanstd(const A &...given) { return detail::call("nanstd", given...); }
/** The sum, NaN as 0.  Python: op.nansum(x, axis=None, keepdims=False) */
template <class... A> Result nansum(const A &...given) { return detail::call("nansum", given...); }
/** The variance of the elements that are numbers.  Python: op.nanvar(x, axis=None, correction=0.0, keepdims=False) */
template <class... A> Result nanvar(const A &...given) { return detail::call("nanvar", given...); }
/** The channels, axis 1, of all groups in turn.  Python: op.native_channel_shuffle(x, groups) */
template <class... A> Result native_channel_shuffle(const A &...given) { return detail::call("native_channel_shuffle", given...); }
/** The chance of at most k failures before n successes of probability p.  Python: op.nbdtr(k, n, p) */
template <class... A> Result nbdtr(const A &...given) { return detail::call("nbdtr", given...); }
/** 1 - nbdtr(k, n, p).  Python: op.nbdtrc(k, n, p) */
template <class... A> Result nbdtrc(const A &...given) { return detail::call("nbdtrc", given...); }
/** The distribution function of the normal distribution.  Python: op.ndtr(x) */
template <class... A> Result ndtr(const A &...given) { return detail::call("ndtr", given...); }
/** The x with ndtr(x) = p.  Python: op.ndtri(p) */
template <class... A> Result ndtri(const A &...given) { return detail::call("ndtri", given...); }
/** Whether x differs from y.  Python: op.ne(x, y, /) */
template <class... A> Result ne(const A &...given) { return detail::call("ne", given...); }
/** Negation.  Python: op.neg(x, /) */
template <class... A> Result neg(const A &...given) { return detail::call("neg", given...); }
/** The next representable number from x towards y.  Python: op.nextafter(x, y, /) */
template <class... A> Result nextafter(const A &...given) { return detail::call("nextafter", given...); }
/** -log_probabilities at the labelled class.  Python: op.nll_loss(log_probabilities, labels, axis=-1, reduction='mean', ignore_index=None) */
template <class... A> Result nll_loss(const A &...given) { return detail::call("nll_loss", given...); }
/** Indices of the nonzero elements, a tensor per axis; cut or filled up to `size` when given.  Python: op.nonzero(x, size=None, fill=0) */
template <class... A> Result nonzero(const A &...given) { return detail::call("nonzero", given...); }
/** The norm of all elements, or along axes.  Python: op.norm(x, ord=None, axis=None, keepdims=False) */
template <class... A> Result norm(const A &...given) { return detail::call("norm", given...); }
/** x divided by its p-norm along an axis, or by eps where that is larger.  Python: op.normalize(x, p=2.0, axis=1, eps=1e-12) */
template <class... A> Result normalize(const A &...given) { return detail::call("normalize", given...); }
/** What is kept elsewhere under a number.  Python:  */
template <class... A> Result offload_get(const A &...given) { return detail::call("offload_get", given...); }
/** The number under which x is kept elsewhere.  Python:  */
template <class... A> Result offload_put(const A &...given) { return detail::call("offload_put", given...); }
/** 1 at each index along a new axis and 0 elsewhere; all 0 for an index outside the axis.  Python: op.one_hot(indices, size, dtype=f32, axis=-1) */
template <class... A> Result one_hot(const A &...given) { return detail::call("one_hot", given...); }
/** A tensor of ones.  Python: op.ones(shape, dtype=f32) */
template <class... A> Result ones(const A &...given) { return detail::call("ones", given...); }
/** A tensor of ones of x's shape, and dtype unless given.  Python: op.ones_like(x, dtype=None) */
template <class... A> Result ones_like(const A &...given) { return detail::call("ones_like", given...); }
/** All products of an element of vector a and one of vector b.  Python: op.outer(a, b) */
template <class... A> Result outer(const A &...given) { return detail::call("outer", given...); }
/** The sum of frames laid out every `hop` elements: the transpose of frame.  Python: op.overlap_add(x, hop) */
template <class... A> Result overlap_add(const A &...given) { return detail::call("overlap_add", given...); }
/** Eight zeros and ones after another along an axis as one u8; the end is filled with zeros.  Python: op.packbits(x, axis=None, bitorder='big') */
template <class... A> Result packbits(const A &...given) { return detail::call("packbits", given...); }
/** x with `width` elements (before, after) around each axis, of a value or by a mode its own.  Python: op.pad(x, width, value=0, mode='constant') */
template <class... A> Result pad(const A &...given) { return detail::call("pad", given...); }
/** The p-norm of x - y + eps along the last axis.  Python: op.pairwise_distance(x, y, p=2.0, eps=1e-06, keepdims=False) */
template <class... A> Result pairwise_distance(const A &...given) { return detail::call("pairwise_distance", given...); }
/** x sorted: smaller elements before the kth, larger ones after it.  Python: op.partition(x, kth, axis=-1) */
template <class... A> Result partition(const A &...given) { return detail::call("partition", given...); }
/** The distances of all pairs of rows, (0, 1), (0, 2) ... (n - 2, n - 1).  Python: op.pdist(x, p=2.0) */
template <class... A> Result pdist(const A &...given) { return detail::call("pdist", given...); }
/** The chance of at most k events of Poisson's distribution of mean m.  Python: op.pdtr(k, m) */
template <class... A> Result pdtr(const A &...given) { return detail::call("pdtr", given...); }
/** 1 - pdtr(k, m).  Python: op.pdtrc(k, m) */
template <class... A> Result pdtrc(const A &...given) { return detail::call("pdtrc", given...); }
/** quantile with q in percent.  Python: op.percentile(x, q, axis=None, method='linear', keepdims=False) */
template <class... A> Result percentile(const A &...given) { return detail::call("percentile", given...); }
/** n (n - 1) ... (n - k + 1): the sequences of k among n; 0 where k > n or either is below 0.  Python: op.perm(n, k) */
template <class... A> Result perm(const A &...given) { return detail::call("perm", given...); }
/** The function, or number, of the last condition that holds; one more is for the rest, else 0.  Python: op.piecewise(x, conditions, functions) */
template <class... A> Result piecewise(const A &...given) { return detail::call("piecewise", given...); }
/** The pseudoinverse; singular values up to rtol times the largest count as zero.  Python: op.pinv(x, rtol=None) */
template <class... A> Result pinv(const A &...given) { return detail::call("pinv", given...); }
/** The first step, a value or a function of none, passed through the functions that follow.  Python: op.pipeline(steps) */
template <class... A> Result pipeline(const A &...given) { return detail::call("pipeline", given...); }
/** (..., c r^2, h, w) to (..., c, h r, w r): channels become pixels.  Python: op.pixel_shuffle(x, factor) */
template <class... A> Result pixel_shuffle(const A &...given) { return detail::call("pixel_shuffle", given...); }
/** (..., c, h r, w r) to (..., c r^2, h, w): pixels become channels.  Python: op.pixel_unshuffle(x, factor) */
template <class... A> Result pixel_unshuffle(const A &...given) { return detail::call("pixel_unshuffle", given...); }
/** gamma(z + m) / gamma(z).  Python: op.poch(z, m) */
template <class... A> Result poch(const A &...given) { return detail::call("poch", given...); }
/** -log of a Poisson likelihood less log(targets!): exp(x) - targets * x, or of rates.  Python: op.poisson_nll(x, targets, log_input=True, eps=1e-08, reduction='mean') */
template <class... A> Result poisson_nll(const A &...given) { return detail::call("poisson_nll", given...); }
/** The polynomial with these zeros, highest power first; of a square matrix, its characteristic one.  Python: op.poly(roots) */
template <class... A> Result poly(const A &...given) { return detail::call("poly", given...); }
/** The sum of two polynomials.  Python: op.polyadd(p, q) */
template <class... A> Result polyadd(const A &...given) { return detail::call("polyadd", given...); }
/** The m-th derivative of a polynomial.  Python: op.polyder(p, m=1) */
template <class... A> Result polyder(const A &...given) { return detail::call("polyder", given...); }
/** The quotient and the remainder of polynomials, highest power first; q starts with no 0.  Python: op.polydiv(p, q) */
template <class... A> Result polydiv(const A &...given) { return detail::call("polydiv", given...); }
/** The polynomial of least squares through points, with weights w.  Python: op.polyfit(x, y, degree, w=None) */
template <class... A> Result polyfit(const A &...given) { return detail::call("polyfit", given...); }
/** Derivative of digamma of this order, 0 for digamma itself.  Python: op.polygamma(order, x) */
template <class... A> Result polygamma(const A &...given) { return detail::call("polygamma", given...); }
/** The m-th antiderivative of a polynomial, with the constant k at each step.  Python: op.polyint(p, m=1, k=0.0) */
template <class... A> Result polyint(const A &...given) { return detail::call("polyint", given...); }
/** The product of two polynomials.  Python: op.polymul(p, q) */
template <class... A> Result polymul(const A &...given) { return detail::call("polymul", given...); }
/** The difference of two polynomials.  Python: op.polysub(p, q) */
template <class... A> Result polysub(const A &...given) { return detail::call("polysub", given...); }
/** A polynomial at x, by Horner's rule.  Python: op.polyval(p, x) */
template <class... A> Result polyval(const A &...given) { return detail::call("polyval", given...); }
/** How many bits of |x| are 1, as u8.  Python: op.population_count(x) */
template <class... A> Result population_count(const A &...given) { return detail::call("population_count", given...); }
/** The tensor itself.  Python: op.positive(x, /) */
template <class... A> Result positive(const A &...given) { return detail::call("positive", given...); }
/** x to the power y; correctly rounded for 1, 2 and -1.  Python: op.pow(x, y, /) */
template <class... A> Result pow(const A &...given) { return detail::call("pow", given...); }
/** x ** y - 1 for x > 0, exact near 0.  Python: op.powm1(x, y) */
template <class... A> Result powm1(const A &...given) { return detail::call("powm1", given...); }
/** x where it is positive, slope times x elsewhere; the slope broadcasts to x.  Python: op.prelu(x, slope) */
template <class... A> Result prelu(const A &...given) { return detail::call("prelu", given...); }
/** Product over axes; integers are multiplied in 64 bits.  Python: op.prod(x, axis=None, keepdims=False) */
template <class... A> Result prod(const A &...given) { return detail::call("prod", given...); }
/** delta^2 (sqrt(1 + (r / delta)^2) - 1): a smooth Huber loss.  Python: op.pseudo_huber(delta, r) */
template <class... A> Result pseudo_huber(const A &...given) { return detail::call("pseudo_huber", given...); }
/** The range of values: max - min.  Python: op.ptp(x, axis=None, keepdims=False) */
template <class... A> Result ptp(const A &...given) { return detail::call("ptp", given...); }
/** x with values written, for each place of `indices`, at that index along an axis.  Python: op.put_along_axis(x, indices, value, axis=-1) */
template <class... A> Result put_along_axis(const A &...given) { return detail::call("put_along_axis", given...); }
/** Queries, keys and values (batch, heads, seq, dim) of x (batch, seq, width) by one product with weight (width, (heads + 2 kv_heads) dim).  Python: op.qkv_projection(x, weight, bias=None, *, heads, kv_heads=None) */
template <class... A> Result qkv_projection(const A &...given) { return detail::call("qkv_projection", given...); }
/** (Q, R) with Q @ R = x, orthonormal columns in Q and zeros below the diagonal of R.  Python: op.qr(x, mode='reduced') */
template <class... A> Result qr(const A &...given) { return detail::call("qr", given...); }
/** The numbers that a part q of the elements does not exceed; the axis of a vector q comes first.  Python: op.quantile(x, q, axis=None, method='linear', keepdims=False) */
template <class... A> Result quantile(const A &...given) { return detail::call("quantile", given...); }
/** Radians as degrees.  Python: op.rad2deg(x) */
template <class... A> Result rad2deg(const A &...given) { return detail::call("rad2deg", given...); }
/** Degrees, minutes and seconds as radians.  Python: op.radian(d, m, s) */
template <class... A> Result radian(const A &...given) { return detail::call("radian", given...); }
/** Degrees as radians.  Python: op.radians(x) */
template <class... A> Result radians(const A &...given) { return detail::call("radians", given...); }
/** Words of Philox4x32-10 for every element of a u64 counter under the key (k0, k1).  Python:  */
template <class... A> Result random_bits(const A &...given) { return detail::call("random_bits", given...); }
/** x as one axis.  Python: op.ravel(x) */
template <class... A> Result ravel(const A &...given) { return detail::call("ravel", given...); }
/** The flat indices of places in a shape.  Python: op.ravel_multi_index(places, shape) */
template <class... A> Result ravel_multi_index(const A &...given) { return detail::call("ravel_multi_index", given...); }
/** Real part.  Python: op.real(x, /) */
template <class... A> Result real(const A &...given) { return detail::call("real", given...); }
/** One over x.  Python: op.reciprocal(x, /) */
template <class... A> Result reciprocal(const A &...given) { return detail::call("reciprocal", given...); }
/** x log(x / y), 0 where x is 0 and y >= 0, infinity where it is undefined.  Python: op.rel_entr(x, y) */
template <class... A> Result rel_entr(const A &...given) { return detail::call("rel_entr", given...); }
/** The larger of x and 0.  Python: op.relu(x, /) */
template <class... A> Result relu(const A &...given) { return detail::call("relu", given...); }
/** x, but at least 0 and at most 6.  Python: op.relu6(x, /) */
template <class... A> Result relu6(const A &...given) { return detail::call("relu6", given...); }
/** Remainder with the sign of the divisor.  Python: op.remainder(x, y, /) */
template <class... A> Result remainder(const A &...given) { return detail::call("remainder", given...); }
/** Each element along an axis (of the flat x when none is given) so many times in a row.  Python: op.repeat(x, repeats, axis=None) */
template <class... A> Result repeat(const A &...given) { return detail::call("repeat", given...); }
/** x with its elements in the same order and another shape; -1 stands for what remains.  Python: op.reshape(x, shape) */
template <class... A> Result reshape(const A &...given) { return detail::call("reshape", given...); }
/** x + y, with elements of y dropped at this rate; a rate above 0 needs a key.  Python: op.residual(x, y, dropout=0.0, key=None) */
template <class... A> Result residual(const A &...given) { return detail::call("residual", given...); }
/** x (batch, channels, ...) at other spatial sizes, given as sizes or as a scale.  Python: op.resize(x, size=None, scale=None, mode='nearest', align_corners=False) */
template <class... A> Result resize(const A &...given) { return detail::call("resize", given...); }
/** The n // 2 + 1 first elements of fft of a real tensor; the others are their conjugates.  Python: op.rfft(x, n=None, axis=-1, norm=None) */
template <class... A> Result rfft(const A &...given) { return detail::call("rfft", given...); }
/** The frequencies of rfft of n samples at spacing d: 0, 1, ..., n // 2 over n * d.  Python: op.rfftfreq(n, d=1.0, dtype=f32) */
template <class... A> Result rfftfreq(const A &...given) { return detail::call("rfftfreq", given...); }
/** rfft over the last of the axes and fft over the others.  Python: op.rfftn(x, s=None, axes=None, norm=None) */
template <class... A> Result rfftn(const A &...given) { return detail::call("rfftn", given...); }
/** 1 / gamma(x), which is 0 at 0, -1, -2, ...  Python: op.rgamma(x) */
template <class... A> Result rgamma(const A &...given) { return detail::call("rgamma", given...); }
/** x / sqrt(mean(x * x) + eps) along axes, times gain, which has those axes.  Python: op.rmsnorm(x, gain=None, axis=-1, eps=1e-06) */
template <class... A> Result rmsnorm(const A &...given) { return detail::call("rmsnorm", given...); }
/** rmsnorm that no finite row overflows; a row of zeros gives zeros, even for eps=0.  Python: op.rmsnorm_safe(x, gain=None, axis=-1, eps=1e-06) */
template <class... A> Result rmsnorm_safe(const A &...given) { return detail::call("rmsnorm_safe", given...); }
/** x with elements moved along axes, those that leave one end entering at the other.  Python: op.roll(x, shift, axis=None) */
template <class... A> Result roll(const A &...given) { return detail::call("roll", given...); }
/** An axis moved to just before the axis `start`.  Python: op.rollaxis(x, axis, start=0) */
template <class... A> Result rollaxis(const A &...given) { return detail::call("rollaxis", given...); }
/** The zeros of a polynomial, highest power first, whose first coefficient is not 0: complex numbers.  Python: op.roots(p) */
template <class... A> Result roots(const A &...given) { return detail::call("roots", given...); }
/** Rotary positions on (..., seq, dim): pairs of elements turned by an angle per position.  Python: op.rope(x, positions=None, base=10000.0) */
template <class... A> Result rope(const A &...given) { return detail::call("rope", given...); }
/** x turned by 90 degrees k times, from the first of two axes towards the second.  Python: op.rot90(x, k=1, axes=(0, 1)) */
template <class... A> Result rot90(const A &...given) { return detail::call("rot90", given...); }
/** Nearest whole number, ties to even.  Python: op.round(x, decimals=0) */
template <class... A> Result round(const A &...given) { return detail::call("round", given...); }
/** One over the square root.  Python: op.rsqrt(x, /) */
template <class... A> Result rsqrt(const A &...given) { return detail::call("rsqrt", given...); }
/** Cotangents as they are, or an error when they depend on the basis of a cluster.  Python:  */
template <class... A> Result same_in_every_gauge(const A &...given) { return detail::call("same_in_every_gauge", given...); }
/** Carry a state along the first axis of xs: f(carry, x) -> (carry, y); the last carry and all y.  Python: op.scan(f, init, xs=None, length=None, reverse=False, unroll=1) */
template <class... A> Result scan(const A &...given) { return detail::call("scan", given...); }
/** x with values written at indices along axes; the last one for a place stays.  Python: op.scatter(x, value, *indices, axes=None) */
template <class... A> Result scatter(const A &...given) { return detail::call("scatter", given...); }
/** x with values added at indices along axes, in the order of the indices.  Python: op.scatter_add(x, value, *indices, axes=None) */
template <class... A> Result scatter_add(const A &...given) { return detail::call("scatter_add", given...); }
/** x with elements at indices along axes raised to at least the values.  Python: op.scatter_max(x, value, *indices, axes=None) */
template <class... A> Result scatter_max(const A &...given) { return detail::call("scatter_max", given...); }
/** x with elements at indices along axes lowered to at most the values.  Python: op.scatter_min(x, value, *indices, axes=None) */
template <class... A> Result scatter_min(const A &...given) { return detail::call("scatter_min", given...); }
/** x with elements at indices along axes multiplied by values, in the order of the indices.  Python: op.scatter_mul(x, value, *indices, axes=None) */
template <class... A> Result scatter_mul(const A &...given) { return detail::call("scatter_mul", given...); }
/** The entries of a @ b at the places of a sparse matrix in CSR form, and no others.  Python: op.sddmm(columns, pointers, a, b) */
template <class... A> Result sddmm(const A &...given) { return detail::call("sddmm", given...); }
/** Where values would be put into the sorted x: before equal elements (left) or after (right).  Python: op.searchsorted(x, values, side='left', sorter=None) */
template <class... A> Result searchsorted(const A &...given) { return detail::call("searchsorted", given...); }
/** The largest elements of the rows of x by segment; the least number where a segment is empty.  Python: op.segment_max(x, ids, *, count) */
template <class... A> Result segment_max(const A &...given) { return detail::call("segment_max", given...); }
/** The smallest elements of the rows of x by segment; the largest number where a segment is empty.  Python: op.segment_min(x, ids, *, count) */
template <class... A> Result segment_min(const A &...given) { return detail::call("segment_min", given...); }
/** The products of the rows of x by segment.  Python: op.segment_prod(x, ids, *, count) */
template <class... A> Result segment_prod(const A &...given) { return detail::call("segment_prod", given...); }
/** Fold the rows of x by segment: sum, prod, max, min, or mean, which is 0 where a segment is empty.  Python: op.segment_reduce(x, ids, *, count, reduction='sum') */
template <class... A> Result segment_reduce(const A &...given) { return detail::call("segment_reduce", given...); }
/** The sums of the rows of x by segment: row i belongs to segment ids[i] of count.  Python: op.segment_sum(x, ids, *, count) */
template <class... A> Result segment_sum(const A &...given) { return detail::call("segment_sum", given...); }
/** The scaled elu that keeps mean 0 and variance 1.  Python: op.selu(x, /) */
template <class... A> Result selu(const A &...given) { return detail::call("selu", given...); }
/** The elements of x that are not in y, in order, once each; its size depends on the data.  Python: op.setdiff1d(x, y) */
template <class... A> Result setdiff1d(const A &...given) { return detail::call("setdiff1d", given...); }
/** The elements of one of both alone, in order, once each; its size depends on the data.  Python: op.setxor1d(x, y) */
template <class... A> Result setxor1d(const A &...given) { return detail::call("setxor1d", given...); }
/** 1 / (1 + exp(-x)) without overflow.  Python: op.sigmoid(x, /) */
template <class... A> Result sigmoid(const A &...given) { return detail::call("sigmoid", given...); }
/** -1, 0 or 1; x over its absolute value for complex x.  Python: op.sign(x, /) */
template <class... A> Result sign(const A &...given) { return detail::call("sign", given...); }
/** Whether the sign bit is set.  Python: op.signbit(x, /) */
template <class... A> Result signbit(const A &...given) { return detail::call("signbit", given...); }
/** The matrix sign: x times the inverse of the square root of x @ x.  Python: op.signm(x) */
template <class... A> Result signm(const A &...given) { return detail::call("signm", given...); }
/** x times sigmoid(x).  Python: op.silu(x, /) */
template <class... A> Result silu(const A &...given) { return detail::call("silu", given...); }
/** Sine.  Python: op.sin(x, /) */
template <class... A> Result sin(const A &...given) { return detail::call("sin", given...); }
/** sin(pi x) / (pi x), 1 at 0.  Python: op.sinc(x) */
template <class... A> Result sinc(const A &...given) { return detail::call("sinc", given...); }
/** The sine of an angle in degrees, exact at multiples of 90.  Python: op.sindg(x) */
template <class... A> Result sindg(const A &...given) { return detail::call("sindg", given...); }
/** Singular vectors with the bases of clusters that a matrix has as it moves along t.  Python:  */
template <class... A> Result singular_follow(const A &...given) { return detail::call("singular_follow", given...); }
/** Hyperbolic sine.  Python: op.sinh(x, /) */
template <class... A> Result sinh(const A &...given) { return detail::call("sinh", given...); }
/** The part of x from start up to stop on each axis, every step-th element.  Python: op.slice_(x, start, stop, step=None) */
template <class... A> Result slice(const A &...given) { return detail::call("slice", given...); }
/** (sign, logabsdet) with det(x) = sign * exp(logabsdet), without overflow.  Python: op.slogdet(x) */
template <class... A> Result slogdet(const A &...given) { return detail::call("slogdet", given...); }
/** huber with delta = beta, over beta: slope 1 outside; the absolute difference for beta=0.  Python: op.smooth_l1(x, y, beta=1.0, reduction='mean') */
template <class... A> Result smooth_l1(const A &...given) { return detail::call("smooth_l1", given...); }
/** log(1 + exp(-targets * x)) with targets -1 or 1.  Python: op.soft_margin(x, targets, reduction='mean') */
template <class... A> Result soft_margin(const A &...given) { return detail::call("soft_margin", given...); }
/** log(1 + exp(-targets * x)) with targets -1 or 1.  Python: op.soft_margin_loss(x, targets, reduction='mean') */
template <class... A> Result soft_margin_loss(const A &...given) { return detail::call("soft_margin_loss", given...); }
/** exp(x) over its sum along axes.  Python: op.softmax(x, axis=-1) */
template <class... A> Result softmax(const A &...given) { return detail::call("softmax", given...); }
/** softmax, but a row of -inf gives zeros and elements at +inf share their row equally.  Python: op.softmax_safe(x, axis=-1) */
template <class... A> Result softmax_safe(const A &...given) { return detail::call("softmax_safe", given...); }
/** softmax(-x): the smallest elements weigh most.  Python: op.softmin(x, axis=-1) */
template <class... A> Result softmin(const A &...given) { return detail::call("softmin", given...); }
/** log(1 + exp(beta * x)) / beta, without overflow.  Python: op.softplus(x, beta=1.0) */
template <class... A> Result softplus(const A &...given) { return detail::call("softplus", given...); }
/** x moved towards 0 by width, and 0 where it is within width of 0.  Python: op.softshrink(x, width=0.5) */
template <class... A> Result softshrink(const A &...given) { return detail::call("softshrink", given...); }
/** x / (1 + |x|).  Python: op.softsign(x, /) */
template <class... A> Result softsign(const A &...given) { return detail::call("softsign", given...); }
/** The x with a @ x = b; b is one vector when it has one axis, else a stack of matrices.  Python: op.solve(a, b) */
template <class... A> Result solve(const A &...given) { return detail::call("solve", given...); }
/** x sorted along an axis.  Python: op.sort(x, axis=-1, descending=False, stable=True) */
template <class... A> Result sort(const A &...given) { return detail::call("sort", given...); }
/** Convolve (batch, in, sizes) by complex weights (in, out, modes) of the lowest frequencies.  Python: op.spectral_conv(x, weights) */
template <class... A> Result spectral_conv(const A &...given) { return detail::call("spectral_conv", given...); }
/** x cut along an axis into this many equal parts, or into parts of these sizes.  Python: op.split(x, parts, axis=0) */
template <class... A> Result split(const A &...given) { return detail::call("split", given...); }
/** Queries, keys and values (batch, heads, seq, dim) of one product (batch, seq, (heads + 2 kv_heads) dim).  Python: op.split_qkv(qkv, *, heads, kv_heads=None) */
template <class... A> Result split_qkv(const A &...given) { return detail::call("split_qkv", given...); }
/** The product A @ x of a sparse matrix in CSR form and a matrix; entries of a row are added in order.  Python: op.spmm(values, columns, pointers, x) */
template <class... A> Result spmm(const A &...given) { return detail::call("spmm", given...); }
/** Square root.  Python: op.sqrt(x, /) */
template <class... A> Result sqrt(const A &...given) { return detail::call("sqrt", given...); }
/** The square root of square matrices whose eigenvalues have a positive real part.  Python: op.sqrtm(x) */
template <class... A> Result sqrtm(const A &...given) { return detail::call("sqrtm", given...); }
/** x times x.  Python: op.square(x, /) */
template <class... A> Result square(const A &...given) { return detail::call("square", given...); }
/** (x + sqrt(x^2 + b)) / 2, a smooth relu.  Python: op.squareplus(x, b=4.0) */
template <class... A> Result squareplus(const A &...given) { return detail::call("squareplus", given...); }
/** x without axes of size 1: those named, or all that are 1 whatever a symbolic size is.  Python: op.squeeze(x, axis=None) */
template <class... A> Result squeeze(const A &...given) { return detail::call("squeeze", given...); }
/** Tensors of one shape joined along a new axis.  Python: op.stack(xs, axis=0) */
template <class... A> Result stack(const A &...given) { return detail::call("stack", given...); }
/** x, which a program wants in the memory of the host or of the device; on a CPU these are one.  Python: op.state_move(x, to='device') */
template <class... A> Result state_move(const A &...given) { return detail::call("state_move", given...); }
/** Ask for x, which is read soon, in a memory near to what computes; the result is 0.  Python: op.state_prefetch(x, into='l2') */
template <class... A> Result state_prefetch(const A &...given) { return detail::call("state_prefetch", given...); }
/** A cache with `count` new positions from `first` on; those past its room are left out, or wrap.  Python: op.state_write(held, new, first, count, wrap=False) */
template <class... A> Result state_write(const A &...given) { return detail::call("state_write", given...); }
/** A pool of pages with position i of sequence b written to slot slots[b, i] of page pages[b, i].  Python: op.state_write_pages(pool, new, pages, slots) */
template <class... A> Result state_write_pages(const A &...given) { return detail::call("state_write_pages", given...); }
/** Standard deviation over axes: the square root of var, whose slope at equal elements is 0.  Python: op.std(x, axis=None, correction=0.0, keepdims=False) */
template <class... A> Result std(const A &...given) { return detail::call("std", given...); }
/** The distribution function of Student's t with v degrees of freedom.  Python: op.stdtr(v, x) */
template <class... A> Result stdtr(const A &...given) { return detail::call("stdtr", given...); }
/** The transforms of windowed frames, (..., frequency, frame): rfft of real x, else fft.  Python: op.stft(x, window, hop=None, center=True, norm=None) */
template <class... A> Result stft(const A &...given) { return detail::call("stft", given...); }
/** x, as a constant for differentiation.  Python: op.stop_gradient(x) */
template <class... A> Result stop_gradient(const A &...given) { return detail::call("stop_gradient", given...); }
/** Difference of two tensors.  Python: op.sub(x, y, /) */
template <class... A> Result sub(const A &...given) { return detail::call("sub", given...); }
/** Sum over axes; integers are summed in 64 bits.  Python: op.sum(x, axis=None, keepdims=False) */
template <class... A> Result sum(const A &...given) { return detail::call("sum", given...); }
/** (U, S, Vh) with U @ diag(S) @ Vh = x, S descending; U and Vh are square when full.  Python: op.svd(x, full_matrices=True) */
template <class... A> Result svd(const A &...given) { return detail::call("svd", given...); }
/** The singular values, descending.  Python: op.svdvals(x) */
template <class... A> Result svdvals(const A &...given) { return detail::call("svdvals", given...); }
/** x with two axes swapped.  Python: op.swapaxes(x, a, b) */
template <class... A> Result swapaxes(const A &...given) { return detail::call("swapaxes", given...); }
/** The silu of the first half of x along an axis times the second half.  Python: op.swiglu(x, axis=-1) */
template <class... A> Result swiglu(const A &...given) { return detail::call("swiglu", given...); }
/** x times sigmoid(beta * x).  Python: op.swish(x, beta=1.0) */
template <class... A> Result swish(const A &...given) { return detail::call("swish", given...); }
/** The elements of x at indices along an axis, or of the flat x when no axis is given.  Python: op.take(x, indices, axis=None) */
template <class... A> Result take(const A &...given) { return detail::call("take", given...); }
/** For each place of `indices` the element of x at that index along an axis.  Python: op.take_along_axis(x, indices, axis=-1) */
template <class... A> Result take_along_axis(const A &...given) { return detail::call("take_along_axis", given...); }
/** Tangent.  Python: op.tan(x, /) */
template <class... A> Result tan(const A &...given) { return detail::call("tan", given...); }
/** The tangent of an angle in degrees.  Python: op.tandg(x) */
template <class... A> Result tandg(const A &...given) { return detail::call("tandg", given...); }
/** Hyperbolic tangent.  Python: op.tanh(x, /) */
template <class... A> Result tanh(const A &...given) { return detail::call("tanh", given...); }
/** x - tanh(x).  Python: op.tanhshrink(x, /) */
template <class... A> Result tanhshrink(const A &...given) { return detail::call("tanhshrink", given...); }
/** Sum of products over the last axes of a and the first of b, or over pairs of axes.  Python: op.tensordot(a, b, axes=2) */
template <class... A> Result tensordot(const A &...given) { return detail::call("tensordot", given...); }
/** The inverse of x for tensordot over its first ind axes.  Python: op.tensorinv(x, ind=2) */
template <class... A> Result tensorinv(const A &...given) { return detail::call("tensorinv", given...); }
/** The x of tensordot(a, x, x.ndim) = b.  Python: op.tensorsolve(a, b) */
template <class... A> Result tensorsolve(const A &...given) { return detail::call("tensorsolve", given...); }
/** x where it is above the level, the value elsewhere.  Python: op.threshold(x, level, value) */
template <class... A> Result threshold(const A &...given) { return detail::call("threshold", given...); }
/** x laid side by side, so many times along each axis.  Python: op.tile(x, reps) */
template <class... A> Result tile(const A &...given) { return detail::call("tile", given...); }
/** Sign (or phase) and logarithm of the determinant of the matrix with the 2 n - 1 diagonals t.  Python:  */
template <class... A> Result toeplitz_slogdet(const A &...given) { return detail::call("toeplitz_slogdet", given...); }
/** The x with T x = b for the columns of b, from the 2 n - 1 diagonals t, the upper right one first.  Python:  */
template <class... A> Result toeplitz_solve(const A &...given) { return detail::call("toeplitz_solve", given...); }
/** The k largest (or smallest) elements along an axis, in order, and their indices.  Python: op.topk(x, k, axis=-1, largest=True) */
template <class... A> Result topk(const A &...given) { return detail::call("topk", given...); }
/** Sum of a diagonal of the matrices in the last two axes; integers are summed in 64 bits.  Python: op.trace(x, offset=0) */
template <class... A> Result trace(const A &...given) { return detail::call("trace", given...); }
/** x with its axes in another order; reversed when none is given.  Python: op.transpose(x, axes=None) */
template <class... A> Result transpose(const A &...given) { return detail::call("transpose", given...); }
/** The integral by trapezoids along an axis.  Python: op.trapezoid(y, x=None, dx=1.0, axis=-1) */
template <class... A> Result trapezoid(const A &...given) { return detail::call("trapezoid", given...); }
/** Ones on and below the k-th diagonal.  Python: op.tri(n, m=None, k=0, dtype=f32) */
template <class... A> Result tri(const A &...given) { return detail::call("tri", given...); }
/** The x with a @ x = b, or a.mT @ x = b, for the lower or upper triangle of a.  Python: op.triangular_solve(a, b, lower=True, transpose=False, unit_diagonal=False) */
template <class... A> Result triangular_solve(const A &...given) { return detail::call("triangular_solve", given...); }
/** The x of a system with three diagonals, each of n elements, for the columns of b.  Python: op.tridiagonal_solve(low, main, up, b) */
template <class... A> Result tridiagonal_solve(const A &...given) { return detail::call("tridiagonal_solve", given...); }
/** The elements of matrices on and below the k-th diagonal, zeros elsewhere.  Python: op.tril(x, k=0) */
template <class... A> Result tril(const A &...given) { return detail::call("tril", given...); }
/** The rows and columns of the lower triangle.  Python: op.tril_indices(n, k=0, m=None) */
template <class... A> Result tril_indices(const A &...given) { return detail::call("tril_indices", given...); }
/** The places on and below a diagonal of a matrix like x.  Python: op.tril_indices_from(x, k=0) */
template <class... A> Result tril_indices_from(const A &...given) { return detail::call("tril_indices_from", given...); }
/** max(0, |anchor - positive| - |anchor - negative| + margin), norms along the last axis.  Python: op.triplet_margin(anchor, positive, negative, margin=1.0, p=2.0, eps=1e-06, reduction='mean') */
template <class... A> Result triplet_margin(const A &...given) { return detail::call("triplet_margin", given...); }
/** The elements of matrices on and above the k-th diagonal, zeros elsewhere.  Python: op.triu(x, k=0) */
template <class... A> Result triu(const A &...given) { return detail::call("triu", given...); }
/** The rows and columns of the upper triangle.  Python: op.triu_indices(n, k=0, m=None) */
template <class... A> Result triu_indices(const A &...given) { return detail::call("triu_indices", given...); }
/** The places on and above a diagonal of a matrix like x.  Python: op.triu_indices_from(x, k=0) */
template <class... A> Result triu_indices_from(const A &...given) { return detail::call("triu_indices_from", given...); }
/** Whole part of x.  Python: op.trunc(x, /) */
template <class... A> Result trunc(const A &...given) { return detail::call("trunc", given...); }
/** The windows of images (batch, channels, ...) as columns (batch, channels * window, windows).  Python: op.unfold(x, size, dilation=1, padding=0, stride=1) */
template <class... A> Result unfold(const A &...given) { return detail::call("unfold", given...); }
/** The elements of either, in order, once each; its size depends on the data.  Python: op.union1d(x, y) */
template <class... A> Result union1d(const A &...given) { return detail::call("union1d", given...); }
/** Distinct elements in ascending order; each NaN is distinct.  Python: op.unique(x) */
template <class... A> Result unique(const A &...given) { return detail::call("unique", given...); }
/** Distinct elements, their first places, the way back to x, and counts; each NaN is distinct.  Python: op.unique_all(x) */
template <class... A> Result unique_all(const A &...given) { return detail::call("unique_all", given...); }
/** Distinct elements and how often each occurs; each NaN is distinct.  Python: op.unique_counts(x) */
template <class... A> Result unique_counts(const A &...given) { return detail::call("unique_counts", given...); }
/** Distinct elements and the place of each element of x among them; each NaN is distinct.  Python: op.unique_inverse(x) */
template <class... A> Result unique_inverse(const A &...given) { return detail::call("unique_inverse", given...); }
/** Distinct elements in ascending order; each NaN is distinct.  Python: op.unique_values(x) */
template <class... A> Result unique_values(const A &...given) { return detail::call("unique_values", given...); }
/** The numbers of 1, 2 or 4 bits in bytes as i32, one after the other along an axis.  Python: op.unpack_ints(x, bits=4, axis=-1, signed=False) */
template <class... A> Result unpack_ints(const A &...given) { return detail::call("unpack_ints", given...); }
/** The bits of u8 numbers along an axis, as zeros and ones of u8; count keeps so many of them.  Python: op.unpackbits(x, axis=None, count=None, bitorder='big') */
template <class... A> Result unpackbits(const A &...given) { return detail::call("unpackbits", given...); }
/** The places of flat indices in a shape.  Python: op.unravel_index(index, shape) */
template <class... A> Result unravel_index(const A &...given) { return detail::call("unravel_index", given...); }
/** The parts of x along an axis, without that axis.  Python: op.unstack(x, axis=0) */
template <class... A> Result unstack(const A &...given) { return detail::call("unstack", given...); }
/** Angles without jumps of more than half a period along an axis.  Python: op.unwrap(x, discont=None, axis=-1, period=6.283185307179586) */
template <class... A> Result unwrap(const A &...given) { return detail::call("unwrap", given...); }
/** x with x[key] set to a value, or combined with it by add, multiply, max or min.  Python: op.update(x, key, value, how) */
template <class... A> Result update(const A &...given) { return detail::call("update", given...); }
/** The powers of each element as a row, the highest first.  Python: op.vander(x, n=None, increasing=False) */
template <class... A> Result vander(const A &...given) { return detail::call("vander", given...); }
/** Variance over axes; the sum of squares is divided by the count less the correction.  Python: op.var(x, axis=None, correction=0.0, keepdims=False) */
template <class... A> Result var(const A &...given) { return detail::call("var", given...); }
/** The sum of products of all elements, those of x conjugated.  Python: op.vdot(x, y) */
template <class... A> Result vdot(const A &...given) { return detail::call("vdot", given...); }
/** Sum of conj(a) * b along an axis; the other axes broadcast.  Python: op.vecdot(a, b, axis=-1) */
template <class... A> Result vecdot(const A &...given) { return detail::call("vecdot", given...); }
/** Conjugated vectors times matrices, over the last axes.  Python: op.vecmat(x, a) */
template <class... A> Result vecmat(const A &...given) { return detail::call("vecmat", given...); }
/** Norm of the elements over axes as one vector: (sum |x|**ord)**(1/ord).  Python: op.vector_norm(x, ord=2, axis=None, keepdims=False) */
template <class... A> Result vector_norm(const A &...given) { return detail::call("vector_norm", given...); }
/** split along the first axis.  Python: op.vsplit(x, parts) */
template <class... A> Result vsplit(const A &...given) { return detail::call("vsplit", given...); }
/** Join along the first axis; vectors are rows.  Python: op.vstack(xs) */
template <class... A> Result vstack(const A &...given) { return detail::call("vstack", given...); }
/** x, after calling to(*values) with NumPy arrays, also in compiled programs and their loops.  Python: op.watch(x, *values, to) */
template <class... A> Result watch(const A &...given) { return detail::call("watch", given...); }
/** x where the condition holds, y elsewhere.  Python: op.where(condition, x, y) */
template <class... A> Result where(const A &...given) { return detail::call("where", given...); }
/** Apply body_fn to the carry while cond_fn of it holds, at most `bound` times if it is given.  Python: op.while_loop(cond_fn, body_fn, init, bound=None) */
template <class... A> Result while_loop(const A &...given) { return detail::call("while_loop", given...); }
/** Windows over the last axes: (..., n) gives (..., windows, size); a number is for one axis.  Python: op.windows(x, size, stride=1, dilation=1) */
template <class... A> Result windows(const A &...given) { return detail::call("windows", given...); }
/** A cache with rows of each sequence replaced.  Python:  */
template <class... A> Result write_rows(const A &...given) { return detail::call("write_rows", given...); }
/** x with a box from a start on replaced.  Python:  */
template <class... A> Result write_slice(const A &...given) { return detail::call("write_slice", given...); }
/** x log(1 + y), 0 where x is 0 and y is a number.  Python: op.xlog1py(x, y) */
template <class... A> Result xlog1py(const A &...given) { return detail::call("xlog1py", given...); }
/** x log(y), 0 where x is 0 and y is a number.  Python: op.xlogy(x, y) */
template <class... A> Result xlogy(const A &...given) { return detail::call("xlogy", given...); }
/** A tensor of zeros.  Python: op.zeros(shape, dtype=f32) */
template <class... A> Result zeros(const A &...given) { return detail::call("zeros", given...); }
/** A tensor of zeros of x's shape, and dtype unless given.  Python: op.zeros_like(x, dtype=None) */
template <class... A> Result zeros_like(const A &...given) { return detail::call("zeros_like", given...); }
/** The Hurwitz zeta function, the sum of (k + q)^-x over k >= 0, for x > 1 and q > 0.  Python: op.zeta(x, q=1.0) */
template <class... A> Result zeta(const A &...given) { return detail::call("zeta", given...); }
/** Riemann's zeta function minus 1, for x > 1.  Python: op.zetac(x) */
template <class... A> Result zetac(const A &...given) { return detail::call("zetac", given...); }
}  // namespace op
}  // namespace tessera

#endif
