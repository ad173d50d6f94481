//! Every function that programs can look up by name, with the CUDA version that introduced it.
//!
//! The versions are from `cudaTypedefs.h`; a test compares the table with the exported symbols.
#![allow(
    clashing_extern_declarations,
    reason = "only the addresses are taken, so the signatures do not matter"
)]

use std::sync::LazyLock;

#[derive(Debug)]
pub(crate) struct Row {
    /// The name that programs ask for, without `_v2` and the like.
    pub base: &'static str,
    /// For example 12080 for CUDA 12.8.
    pub version: i32,
    /// 2 for `_v2`.
    pub generation: u8,
    /// Whether it is the twin for per-thread default streams.
    pub per_thread: bool,
    pub address: Address,
}

/// The address of a function without its signature.
pub(crate) type Address = unsafe extern "C" fn();

impl Row {
    fn new(symbol: &'static str, version: i32, address: Address) -> Self {
        let twin = symbol
            .strip_suffix("_ptsz")
            .or(symbol.strip_suffix("_ptds"));
        let rest = twin.unwrap_or(symbol);
        let known = rest
            .rsplit_once("_v")
            .and_then(|(base, n)| Some((base, n.parse().ok()?)));
        let (base, generation) = known.unwrap_or((rest, 1));
        Self {
            base,
            version,
            generation,
            per_thread: twin.is_some(),
            address,
        }
    }
}

macro_rules! table {
    ($($version:literal: $($symbol:ident)*;)*) => {
        unsafe extern "C" {
            $($(fn $symbol();)*)*
        }
        pub(crate) static TABLE: LazyLock<Vec<Row>> = LazyLock::new(|| {
            vec![$($(Row::new(stringify!($symbol), $version, $symbol)),*),*]
        });
    };
}

table! {
    2000: cuArrayDestroy cuCtxDestroy cuCtxGetDevice cuCtxPopCurrent cuCtxPushCurrent cuCtxSynchronize
        cuDeviceComputeCapability cuDeviceGet cuDeviceGetAttribute cuDeviceGetCount cuDeviceGetName cuEventCreate
        cuEventDestroy cuEventElapsedTime cuEventQuery cuEventRecord cuEventSynchronize cuInit cuMemFreeHost
        cuModuleGetFunction cuModuleLoad cuModuleLoadData cuModuleLoadFatBinary cuModuleUnload cuStreamCreate
        cuStreamDestroy cuStreamQuery cuStreamSynchronize;
    2010: cuModuleLoadDataEx;
    2020: cuDriverGetVersion cuFuncGetAttribute cuMemHostAlloc;
    2030: cuMemHostGetFlags;
    3000: cuFuncSetCacheConfig cuGetExportTable;
    3010: cuCtxGetLimit cuCtxSetLimit;
    3020: cuArray3DCreate_v2 cuArray3DGetDescriptor_v2 cuArrayCreate_v2 cuArrayGetDescriptor_v2 cuCtxCreate_v2
        cuCtxGetApiVersion cuCtxGetCacheConfig cuCtxSetCacheConfig cuDeviceTotalMem_v2 cuMemAllocHost_v2
        cuMemAllocPitch_v2 cuMemAlloc_v2 cuMemFree_v2 cuMemGetAddressRange_v2 cuMemGetInfo_v2
        cuMemHostGetDevicePointer_v2 cuMemcpy2DAsync_v2 cuMemcpy2DUnaligned_v2 cuMemcpy2D_v2 cuMemcpy3DAsync_v2
        cuMemcpy3D_v2 cuMemcpyAtoA_v2 cuMemcpyAtoD_v2 cuMemcpyAtoHAsync_v2 cuMemcpyAtoH_v2 cuMemcpyDtoA_v2
        cuMemcpyDtoDAsync_v2 cuMemcpyDtoD_v2 cuMemcpyDtoHAsync_v2 cuMemcpyDtoH_v2 cuMemcpyHtoAAsync_v2 cuMemcpyHtoA_v2
        cuMemcpyHtoDAsync_v2 cuMemcpyHtoD_v2 cuMemsetD16Async cuMemsetD16_v2 cuMemsetD2D16Async cuMemsetD2D16_v2
        cuMemsetD2D32Async cuMemsetD2D32_v2 cuMemsetD2D8Async cuMemsetD2D8_v2 cuMemsetD32Async cuMemsetD32_v2
        cuMemsetD8Async cuMemsetD8_v2 cuModuleGetGlobal_v2 cuStreamWaitEvent;
    4000: cuCtxDestroy_v2 cuCtxDisablePeerAccess cuCtxEnablePeerAccess cuCtxGetCurrent cuCtxPopCurrent_v2
        cuCtxPushCurrent_v2 cuCtxSetCurrent cuDeviceCanAccessPeer cuEventDestroy_v2 cuLaunchKernel cuMemHostRegister
        cuMemHostUnregister cuMemcpy cuMemcpy3DPeer cuMemcpy3DPeerAsync cuMemcpyAsync cuMemcpyPeer cuMemcpyPeerAsync
        cuPointerGetAttribute cuProfilerStart cuProfilerStop cuStreamDestroy_v2;
    4010: cuDeviceGetByPCIBusId cuDeviceGetPCIBusId cuIpcCloseMemHandle cuIpcGetEventHandle cuIpcGetMemHandle
        cuIpcOpenEventHandle cuIpcOpenMemHandle;
    5000: cuMipmappedArrayCreate cuMipmappedArrayDestroy cuMipmappedArrayGetLevel cuStreamAddCallback;
    5050: cuCtxGetStreamPriorityRange cuLinkComplete cuLinkDestroy cuStreamCreateWithPriority cuStreamGetFlags
        cuStreamGetPriority;
    6000: cuGetErrorName cuGetErrorString cuMemAllocManaged cuStreamAttachMemAsync;
    6050: cuLinkAddData_v2 cuLinkAddFile_v2 cuLinkCreate_v2 cuMemHostRegister_v2
        cuOccupancyMaxActiveBlocksPerMultiprocessor cuOccupancyMaxPotentialBlockSize;
    7000: cuCtxGetFlags cuDevicePrimaryCtxGetState cuDevicePrimaryCtxRelease cuDevicePrimaryCtxReset
        cuDevicePrimaryCtxRetain cuDevicePrimaryCtxSetFlags cuEventRecord_ptsz cuLaunchKernel_ptsz
        cuMemcpy2DAsync_v2_ptsz cuMemcpy2DUnaligned_v2_ptds cuMemcpy2D_v2_ptds cuMemcpy3DAsync_v2_ptsz
        cuMemcpy3DPeerAsync_ptsz cuMemcpy3DPeer_ptds cuMemcpy3D_v2_ptds cuMemcpyAsync_ptsz cuMemcpyAtoA_v2_ptds
        cuMemcpyAtoD_v2_ptds cuMemcpyAtoHAsync_v2_ptsz cuMemcpyAtoH_v2_ptds cuMemcpyDtoA_v2_ptds
        cuMemcpyDtoDAsync_v2_ptsz cuMemcpyDtoD_v2_ptds cuMemcpyDtoHAsync_v2_ptsz cuMemcpyDtoH_v2_ptds
        cuMemcpyHtoAAsync_v2_ptsz cuMemcpyHtoA_v2_ptds cuMemcpyHtoDAsync_v2_ptsz cuMemcpyHtoD_v2_ptds
        cuMemcpyPeerAsync_ptsz cuMemcpyPeer_ptds cuMemcpy_ptds cuMemsetD16Async_ptsz cuMemsetD16_v2_ptds
        cuMemsetD2D16Async_ptsz cuMemsetD2D16_v2_ptds cuMemsetD2D32Async_ptsz cuMemsetD2D32_v2_ptds
        cuMemsetD2D8Async_ptsz cuMemsetD2D8_v2_ptds cuMemsetD32Async_ptsz cuMemsetD32_v2_ptds cuMemsetD8Async_ptsz
        cuMemsetD8_v2_ptds cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags
        cuOccupancyMaxPotentialBlockSizeWithFlags cuPointerGetAttributes cuStreamAddCallback_ptsz
        cuStreamAttachMemAsync_ptsz cuStreamGetFlags_ptsz cuStreamGetPriority_ptsz cuStreamQuery_ptsz
        cuStreamSynchronize_ptsz cuStreamWaitEvent_ptsz;
    8000: cuMemAdvise cuMemPrefetchAsync cuMemPrefetchAsync_ptsz;
    9000: cuFuncSetAttribute cuLaunchCooperativeKernel cuLaunchCooperativeKernel_ptsz;
    9020: cuDeviceGetUuid cuStreamGetCtx cuStreamGetCtx_ptsz;
    10000: cuDestroyExternalMemory cuImportExternalMemory cuGraphAddChildGraphNode cuGraphAddDependencies
        cuGraphAddEmptyNode cuGraphAddHostNode cuGraphAddKernelNode cuGraphAddMemcpyNode cuGraphAddMemsetNode
        cuGraphChildGraphNodeGetGraph cuGraphClone cuGraphCreate cuGraphDestroy cuGraphDestroyNode cuGraphExecDestroy
        cuGraphGetEdges cuGraphGetNodes cuGraphGetRootNodes cuGraphInstantiate cuGraphKernelNodeGetParams
        cuGraphLaunch cuGraphLaunch_ptsz cuGraphMemsetNodeGetParams cuGraphMemsetNodeSetParams cuGraphNodeFindInClone
        cuGraphNodeGetDependencies cuGraphNodeGetType cuGraphRemoveDependencies cuLaunchHostFunc cuLaunchHostFunc_ptsz
        cuStreamBeginCapture cuStreamBeginCapture_ptsz cuStreamEndCapture cuStreamEndCapture_ptsz cuStreamIsCapturing
        cuStreamIsCapturing_ptsz;
    10010: cuGraphExecKernelNodeSetParams cuStreamBeginCapture_v2 cuStreamBeginCapture_v2_ptsz cuStreamGetCaptureInfo
        cuStreamGetCaptureInfo_ptsz cuThreadExchangeStreamCaptureMode;
    10020:
        cuGraphExecUpdate cuMemAddressFree cuMemAddressReserve cuMemCreate cuMemExportToShareableHandle cuMemGetAccess
        cuMemGetAllocationGranularity cuMemGetAllocationPropertiesFromHandle cuMemImportFromShareableHandle cuMemMap
        cuMemRelease cuMemSetAccess cuMemUnmap cuOccupancyAvailableDynamicSMemPerBlock;
    11000: cuDevicePrimaryCtxRelease_v2 cuDevicePrimaryCtxReset_v2 cuDevicePrimaryCtxSetFlags_v2 cuFuncGetModule
        cuGraphInstantiate_v2 cuIpcOpenMemHandle_v2 cuMemRetainAllocationHandle;
    11010: cuEventRecordWithFlags cuEventRecordWithFlags_ptsz cuGraphAddEventRecordNode cuGraphAddEventWaitNode
        cuGraphEventRecordNodeGetEvent cuGraphExecChildGraphNodeSetParams cuGraphUpload cuGraphUpload_ptsz;
    11020: cuDeviceGetDefaultMemPool cuDeviceGetMemPool cuDeviceSetMemPool cuMemAllocAsync cuMemAllocAsync_ptsz
        cuMemAllocFromPoolAsync cuMemAllocFromPoolAsync_ptsz cuMemFreeAsync cuMemFreeAsync_ptsz cuMemPoolCreate
        cuMemPoolDestroy cuMemPoolGetAttribute cuMemPoolSetAccess cuMemPoolSetAttribute cuMemPoolTrimTo;
    11030: cuGetProcAddress cuStreamGetCaptureInfo_v2 cuStreamGetCaptureInfo_v2_ptsz cuStreamUpdateCaptureDependencies
        cuStreamUpdateCaptureDependencies_ptsz;
    11040: cuCtxCreate_v3 cuDeviceGetGraphMemAttribute cuDeviceGetUuid_v2 cuDeviceGraphMemTrim cuGraphAddMemAllocNode
        cuGraphAddMemFreeNode cuGraphInstantiateWithFlags cuGraphMemAllocNodeGetParams;
    11060: cuGraphNodeGetEnabled cuGraphNodeSetEnabled cuLaunchKernelEx cuLaunchKernelEx_ptsz;
    11070: cuModuleGetLoadingMode cuStreamBatchMemOp_v2 cuStreamBatchMemOp_v2_ptsz cuStreamWaitValue32_v2
        cuStreamWaitValue32_v2_ptsz cuStreamWaitValue64_v2 cuStreamWaitValue64_v2_ptsz cuStreamWriteValue32_v2
        cuStreamWriteValue32_v2_ptsz cuStreamWriteValue64_v2 cuStreamWriteValue64_v2_ptsz;
    12000: cuCtxGetId cuGetProcAddress_v2 cuGraphAddKernelNode_v2 cuGraphExecGetFlags
        cuGraphExecKernelNodeSetParams_v2 cuGraphExecUpdate_v2 cuGraphInstantiateWithParams
        cuGraphInstantiateWithParams_ptsz cuGraphKernelNodeGetParams_v2 cuKernelGetAttribute cuKernelGetFunction
        cuKernelSetAttribute cuKernelSetCacheConfig cuLibraryGetGlobal cuLibraryGetKernel cuLibraryGetManaged
        cuLibraryGetModule cuLibraryLoadData cuLibraryLoadFromFile cuLibraryUnload cuStreamGetId cuStreamGetId_ptsz;
    12010: cuCtxSetFlags cuMulticastCreate cuMulticastGetGranularity;
    12020: cuGraphAddNode cuGraphExecNodeSetParams cuGraphNodeSetParams cuMemAdvise_v2 cuMemPrefetchAsync_v2
        cuMemPrefetchAsync_v2_ptsz;
    12030: cuFuncGetName cuGraphAddDependencies_v2 cuGraphAddNode_v2 cuGraphGetEdges_v2 cuGraphNodeGetDependencies_v2
        cuGraphRemoveDependencies_v2 cuKernelGetName cuStreamBeginCaptureToGraph cuStreamBeginCaptureToGraph_ptsz
        cuStreamGetCaptureInfo_v3 cuStreamGetCaptureInfo_v3_ptsz cuStreamUpdateCaptureDependencies_v2
        cuStreamUpdateCaptureDependencies_v2_ptsz;
    12040: cuFuncGetParamInfo cuFuncIsLoaded cuFuncLoad cuKernelGetParamInfo cuLibraryEnumerateKernels
        cuLibraryGetKernelCount cuModuleGetFunctionCount cuDevResourceGenerateDesc cuDeviceGetDevResource
        cuCtxFromGreenCtx cuGreenCtxCreate cuGreenCtxDestroy cuStreamGetGreenCtx;
    12050: cuCtxCreate_v4 cuGreenCtxStreamCreate cuKernelGetLibrary cuStreamGetCtx_v2 cuStreamGetCtx_v2_ptsz;
    12080: cuCheckpointProcessCheckpoint cuCheckpointProcessGetRestoreThreadId cuCheckpointProcessGetState
        cuCheckpointProcessLock cuCheckpointProcessRestore cuCheckpointProcessUnlock cuEventElapsedTime_v2
        cuStreamGetDevice cuStreamGetDevice_ptsz;
    13000: cuCtxGetDevice_v2 cuCtxSynchronize_v2 cuMemGetDefaultMemPool cuMemGetMemPool;
    13020: cuFuncGetParamCount cuKernelGetParamCount;
}
