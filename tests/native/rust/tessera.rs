//! What bindgen writes of tessera.h, as far as the worked example needs it.
#![allow(non_camel_case_types, non_snake_case, dead_code)]
use std::os::raw::{c_char, c_uint, c_void};

pub type tess_status_t = i32;
pub type tess_dtype_t = u32;
pub const TESS_F32: c_uint = 15;

#[repr(C)]
pub struct TessBundle {
    _unused: [u8; 0],
}
#[repr(C)]
pub struct TessEntry {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct TessTensorDesc {
    pub size: u32,
    pub version: u32,
    pub dtype: tess_dtype_t,
    pub rank: u32,
    pub shape: [i64; 8],
    pub strides: [i64; 8],
    pub bytes: u64,
    pub device: u32,
    pub flags: u32,
    pub data: *mut c_void,
}
const _: [(); 168] = [(); std::mem::size_of::<TessTensorDesc>()];

extern "C" {
    pub fn tess_last_error() -> *const c_char;
    pub fn tess_bundle_open(path: *const c_char, flags: u32, out: *mut *mut TessBundle) -> tess_status_t;
    pub fn tess_bundle_close(bundle: *mut TessBundle);
    pub fn tess_entry_open(bundle: *mut TessBundle, name: *const c_char, out: *mut *mut TessEntry) -> tess_status_t;
    pub fn tess_tensor_init(t: *mut TessTensorDesc, dtype: tess_dtype_t, rank: u32, shape: *const i64, data: *mut c_void) -> tess_status_t;
    pub fn tess_tensor_free(t: *mut TessTensorDesc);
    pub fn tess_entry_run(entry: *mut TessEntry, inputs: *const TessTensorDesc, input_count: u32, outputs: *mut TessTensorDesc, output_count: u32) -> tess_status_t;
}
