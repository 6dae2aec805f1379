"""Small kernels as PTX, which the driver compiles: what the tests and benchmarks of the runtime launch."""

# scale: out[i] = x[i] * factor for i < n.  spin: wait so many nanoseconds, then out[0] = 1.
# stage: out[i] = x[i], through dynamic shared memory, one block.  ranks: out[block] = its rank in
# its cluster.
PLAIN = """
.version 7.8
.target sm_90
.address_size 64

.extern .shared .align 16 .b8 dynamic[];

.visible .entry scale(.param .u64 out, .param .u64 x, .param .u32 n, .param .f32 factor)
{
  .reg .pred %p; .reg .f32 %f<3>; .reg .b32 %r<5>; .reg .b64 %d<6>;
  ld.param.u64 %d0, [out];
  ld.param.u64 %d1, [x];
  ld.param.u32 %r0, [n];
  ld.param.f32 %f0, [factor];
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mad.lo.s32 %r4, %r1, %r2, %r3;
  setp.ge.s32 %p, %r4, %r0;
  @%p bra done;
  mul.wide.s32 %d2, %r4, 4;
  add.s64 %d3, %d1, %d2;
  add.s64 %d4, %d0, %d2;
  ld.global.f32 %f1, [%d3];
  mul.f32 %f2, %f1, %f0;
  st.global.f32 [%d4], %f2;
done:
  ret;
}

.visible .entry spin(.param .u64 out, .param .u64 time)
{
  .reg .pred %p; .reg .b32 %r; .reg .b64 %d<5>;
  ld.param.u64 %d0, [out];
  ld.param.u64 %d1, [time];
  mov.u64 %d2, %globaltimer;
again:
  mov.u64 %d3, %globaltimer;
  sub.s64 %d4, %d3, %d2;
  setp.lt.s64 %p, %d4, %d1;
  @%p bra again;
  mov.u32 %r, 1;
  st.global.u32 [%d0], %r;
  ret;
}

.visible .entry stage(.param .u64 out, .param .u64 x, .param .u32 n)
{
  .reg .pred %p; .reg .f32 %f<2>; .reg .b32 %r<5>; .reg .b64 %d<5>;
  ld.param.u64 %d0, [out];
  ld.param.u64 %d1, [x];
  ld.param.u32 %r0, [n];
  mov.u32 %r1, %ntid.x;
  mov.u32 %r2, %tid.x;
fill:
  setp.ge.s32 %p, %r2, %r0;
  @%p bra filled;
  mul.wide.s32 %d2, %r2, 4;
  add.s64 %d3, %d1, %d2;
  ld.global.f32 %f0, [%d3];
  mov.u32 %r3, dynamic;
  mad.lo.s32 %r4, %r2, 4, %r3;
  st.shared.f32 [%r4], %f0;
  add.s32 %r2, %r2, %r1;
  bra fill;
filled:
  bar.sync 0;
  mov.u32 %r2, %tid.x;
drain:
  setp.ge.s32 %p, %r2, %r0;
  @%p bra done;
  mov.u32 %r3, dynamic;
  mad.lo.s32 %r4, %r2, 4, %r3;
  ld.shared.f32 %f1, [%r4];
  mul.wide.s32 %d2, %r2, 4;
  add.s64 %d4, %d0, %d2;
  st.global.f32 [%d4], %f1;
  add.s32 %r2, %r2, %r1;
  bra drain;
done:
  ret;
}

.visible .entry ranks(.param .u64 out)
{
  .reg .b32 %r<2>; .reg .b64 %d<3>;
  ld.param.u64 %d0, [out];
  mov.u32 %r0, %ctaid.x;
  mov.u32 %r1, %cluster_ctarank;
  mul.wide.u32 %d1, %r0, 4;
  add.s64 %d2, %d0, %d1;
  st.global.u32 [%d2], %r1;
  ret;
}
"""

# tile: out = the box of 8 x 16 numbers of a tensor map at (row, column), one block of 128 threads.
TILE = """
.version 8.0
.target sm_90
.address_size 64

.visible .entry tile(
  .param .align 64 .b8 map[128], .param .u64 out, .param .u32 row, .param .u32 column)
{
  .reg .pred %p; .reg .f32 %f; .reg .b32 %r<8>; .reg .b64 %d<5>;
  .shared .align 128 .b8 box[512];
  .shared .align 8 .b64 bar;
  mov.u32 %r0, %tid.x;
  ld.param.u32 %r1, [row];
  ld.param.u32 %r2, [column];
  mov.u32 %r3, bar;
  mov.u32 %r4, box;
  setp.ne.u32 %p, %r0, 0;
  @%p bra ready;
  mbarrier.init.shared::cta.b64 [%r3], 1;
  fence.mbarrier_init.release.cluster;
ready:
  bar.sync 0;
  @%p bra waiting;
  mov.b64 %d0, map;
  cvta.param.u64 %d0, %d0;
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 512;
  cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
    [%r4], [%d0, {%r2, %r1}], [%r3];
waiting:
  mbarrier.try_wait.parity.shared::cta.b64 %p, [%r3], 0;
  @!%p bra waiting;
  mad.lo.s32 %r5, %r0, 4, %r4;
  ld.shared.f32 %f, [%r5];
  ld.param.u64 %d1, [out];
  mul.wide.u32 %d2, %r0, 4;
  add.s64 %d3, %d1, %d2;
  st.global.f32 [%d3], %f;
  ret;
}
"""
