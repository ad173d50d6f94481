//! The result codes of `cuda.h` that the driver itself returns.

pub(crate) type CUresult = u32;

/// Result of a driver function: nothing, or an error code.
pub(crate) type R<T = ()> = Result<T, CUresult>;

pub(crate) const SUCCESS: CUresult = 0;
pub(crate) const INVALID_VALUE: CUresult = 1;
pub(crate) const OUT_OF_MEMORY: CUresult = 2;
pub(crate) const NOT_INITIALIZED: CUresult = 3;
pub(crate) const DEINITIALIZED: CUresult = 4;
pub(crate) const NO_DEVICE: CUresult = 100;
pub(crate) const INVALID_DEVICE: CUresult = 101;
pub(crate) const INVALID_IMAGE: CUresult = 200;
pub(crate) const INVALID_CONTEXT: CUresult = 201;
pub(crate) const NO_BINARY_FOR_GPU: CUresult = 209;
pub(crate) const UNSUPPORTED_LIMIT: CUresult = 215;
pub(crate) const PEER_ACCESS_UNSUPPORTED: CUresult = 217;
pub(crate) const INVALID_PTX: CUresult = 218;
pub(crate) const UNSUPPORTED_EXEC_AFFINITY: CUresult = 224;
pub(crate) const FILE_NOT_FOUND: CUresult = 301;
pub(crate) const MAP_FAILED: CUresult = 205;
pub(crate) const OPERATING_SYSTEM: CUresult = 304;
pub(crate) const INVALID_HANDLE: CUresult = 400;
pub(crate) const ILLEGAL_STATE: CUresult = 401;
pub(crate) const LOSSY_QUERY: CUresult = 402;
pub(crate) const NOT_FOUND: CUresult = 500;
pub(crate) const NOT_READY: CUresult = 600;
pub(crate) const ILLEGAL_ADDRESS: CUresult = 700;
pub(crate) const LAUNCH_OUT_OF_RESOURCES: CUresult = 701;
pub(crate) const PEER_ACCESS_ALREADY_ENABLED: CUresult = 704;
pub(crate) const PEER_ACCESS_NOT_ENABLED: CUresult = 705;
pub(crate) const CONTEXT_IS_DESTROYED: CUresult = 709;
pub(crate) const HOST_MEMORY_ALREADY_REGISTERED: CUresult = 712;
pub(crate) const HOST_MEMORY_NOT_REGISTERED: CUresult = 713;
pub(crate) const MISALIGNED_ADDRESS: CUresult = 716;
pub(crate) const LAUNCH_FAILED: CUresult = 719;
pub(crate) const COOPERATIVE_LAUNCH_TOO_LARGE: CUresult = 720;
pub(crate) const NOT_PERMITTED: CUresult = 800;
pub(crate) const NOT_SUPPORTED: CUresult = 801;
pub(crate) const MPS_CONNECTION_FAILED: CUresult = 805;
pub(crate) const CAPTURE_UNSUPPORTED: CUresult = 900;
pub(crate) const CAPTURE_INVALIDATED: CUresult = 901;
pub(crate) const CAPTURE_MERGE: CUresult = 902;
pub(crate) const CAPTURE_UNMATCHED: CUresult = 903;
pub(crate) const CAPTURE_UNJOINED: CUresult = 904;
pub(crate) const CAPTURE_ISOLATION: CUresult = 905;
pub(crate) const CAPTURE_IMPLICIT: CUresult = 906;
pub(crate) const CAPTURED_EVENT: CUresult = 907;
pub(crate) const CAPTURE_WRONG_THREAD: CUresult = 908;
pub(crate) const GRAPH_EXEC_UPDATE_FAILURE: CUresult = 910;
pub(crate) const UNKNOWN: CUresult = 999;
