//! Every function that programs can look up by name: base name, the CUDA version that brought it,
//! its generation (`_v2` is 2), and whether it is the twin for per-thread default streams.
//!
//! The versions are those of `cudaTypedefs.h`; a test compares the table with the exported symbols.
#![allow(
    clashing_extern_declarations,
    reason = "only the addresses are taken, so the signatures do not matter"
)]

/// One function.
#[derive(Debug)]
pub(crate) struct Row {
    pub base: &'static str,
    /// 12080 for CUDA 12.8.
    pub version: i32,
    pub generation: u8,
    pub per_thread: bool,
    pub address: Address,
}

/// The address of a function whose signature is not known here.
pub(crate) type Address = unsafe extern "C" fn();

macro_rules! table {
    ($($base:literal $symbol:ident $version:literal $generation:literal $per_thread:literal;)*) => {
        unsafe extern "C" {
            $(fn $symbol();)*
        }
        /// All rows, by base name.
        pub(crate) static TABLE: &[Row] = &[$(Row {
            base: $base,
            version: $version,
            generation: $generation,
            per_thread: $per_thread,
            address: $symbol,
        }),*];
    };
}

table! {
    "cuCtxCreate" cuCtxCreate_v2 3020 2 false;
    "cuCtxCreate" cuCtxCreate_v3 11040 3 false;
    "cuCtxCreate" cuCtxCreate_v4 12050 4 false;
    "cuCtxDestroy" cuCtxDestroy 2000 1 false;
    "cuCtxDestroy" cuCtxDestroy_v2 4000 2 false;
    "cuCtxDetach" cuCtxDetach 2000 1 false;
    "cuCtxDisablePeerAccess" cuCtxDisablePeerAccess 4000 1 false;
    "cuCtxEnablePeerAccess" cuCtxEnablePeerAccess 4000 1 false;
    "cuCtxGetApiVersion" cuCtxGetApiVersion 3020 1 false;
    "cuCtxGetCacheConfig" cuCtxGetCacheConfig 3020 1 false;
    "cuCtxGetCurrent" cuCtxGetCurrent 4000 1 false;
    "cuCtxGetDevice" cuCtxGetDevice 2000 1 false;
    "cuCtxGetDevice" cuCtxGetDevice_v2 13000 2 false;
    "cuCtxGetExecAffinity" cuCtxGetExecAffinity 11040 1 false;
    "cuCtxGetFlags" cuCtxGetFlags 7000 1 false;
    "cuCtxGetId" cuCtxGetId 12000 1 false;
    "cuCtxGetLimit" cuCtxGetLimit 3010 1 false;
    "cuCtxGetSharedMemConfig" cuCtxGetSharedMemConfig 4020 1 false;
    "cuCtxGetStreamPriorityRange" cuCtxGetStreamPriorityRange 5050 1 false;
    "cuCtxPopCurrent" cuCtxPopCurrent 2000 1 false;
    "cuCtxPopCurrent" cuCtxPopCurrent_v2 4000 2 false;
    "cuCtxPushCurrent" cuCtxPushCurrent 2000 1 false;
    "cuCtxPushCurrent" cuCtxPushCurrent_v2 4000 2 false;
    "cuCtxResetPersistingL2Cache" cuCtxResetPersistingL2Cache 11000 1 false;
    "cuCtxSetCacheConfig" cuCtxSetCacheConfig 3020 1 false;
    "cuCtxSetCurrent" cuCtxSetCurrent 4000 1 false;
    "cuCtxSetFlags" cuCtxSetFlags 12010 1 false;
    "cuCtxSetLimit" cuCtxSetLimit 3010 1 false;
    "cuCtxSetSharedMemConfig" cuCtxSetSharedMemConfig 4020 1 false;
    "cuCtxSynchronize" cuCtxSynchronize 2000 1 false;
    "cuCtxSynchronize" cuCtxSynchronize_v2 13000 2 false;
    "cuDeviceCanAccessPeer" cuDeviceCanAccessPeer 4000 1 false;
    "cuDeviceComputeCapability" cuDeviceComputeCapability 2000 1 false;
    "cuDeviceGet" cuDeviceGet 2000 1 false;
    "cuDeviceGetAttribute" cuDeviceGetAttribute 2000 1 false;
    "cuDeviceGetByPCIBusId" cuDeviceGetByPCIBusId 4010 1 false;
    "cuDeviceGetCount" cuDeviceGetCount 2000 1 false;
    "cuDeviceGetDefaultMemPool" cuDeviceGetDefaultMemPool 11020 1 false;
    "cuDeviceGetExecAffinitySupport" cuDeviceGetExecAffinitySupport 11040 1 false;
    "cuDeviceGetLuid" cuDeviceGetLuid 10000 1 false;
    "cuDeviceGetMemPool" cuDeviceGetMemPool 11020 1 false;
    "cuDeviceGetName" cuDeviceGetName 2000 1 false;
    "cuDeviceGetNvSciSyncAttributes" cuDeviceGetNvSciSyncAttributes 10020 1 false;
    "cuDeviceGetP2PAttribute" cuDeviceGetP2PAttribute 8000 1 false;
    "cuDeviceGetPCIBusId" cuDeviceGetPCIBusId 4010 1 false;
    "cuDeviceGetProperties" cuDeviceGetProperties 2000 1 false;
    "cuDeviceGetTexture1DLinearMaxWidth" cuDeviceGetTexture1DLinearMaxWidth 11010 1 false;
    "cuDeviceGetUuid" cuDeviceGetUuid 9020 1 false;
    "cuDeviceGetUuid" cuDeviceGetUuid_v2 11040 2 false;
    "cuDevicePrimaryCtxGetState" cuDevicePrimaryCtxGetState 7000 1 false;
    "cuDevicePrimaryCtxRelease" cuDevicePrimaryCtxRelease 7000 1 false;
    "cuDevicePrimaryCtxRelease" cuDevicePrimaryCtxRelease_v2 11000 2 false;
    "cuDevicePrimaryCtxReset" cuDevicePrimaryCtxReset 7000 1 false;
    "cuDevicePrimaryCtxReset" cuDevicePrimaryCtxReset_v2 11000 2 false;
    "cuDevicePrimaryCtxRetain" cuDevicePrimaryCtxRetain 7000 1 false;
    "cuDevicePrimaryCtxSetFlags" cuDevicePrimaryCtxSetFlags 7000 1 false;
    "cuDevicePrimaryCtxSetFlags" cuDevicePrimaryCtxSetFlags_v2 11000 2 false;
    "cuDeviceSetMemPool" cuDeviceSetMemPool 11020 1 false;
    "cuDeviceTotalMem" cuDeviceTotalMem_v2 3020 2 false;
    "cuDriverGetVersion" cuDriverGetVersion 2020 1 false;
    "cuEventCreate" cuEventCreate 2000 1 false;
    "cuEventDestroy" cuEventDestroy 2000 1 false;
    "cuEventDestroy" cuEventDestroy_v2 4000 2 false;
    "cuEventElapsedTime" cuEventElapsedTime 2000 1 false;
    "cuEventElapsedTime" cuEventElapsedTime_v2 12080 2 false;
    "cuEventQuery" cuEventQuery 2000 1 false;
    "cuEventRecord" cuEventRecord 2000 1 false;
    "cuEventRecordWithFlags" cuEventRecordWithFlags 11010 1 false;
    "cuEventRecordWithFlags" cuEventRecordWithFlags_ptsz 11010 1 true;
    "cuEventRecord" cuEventRecord_ptsz 7000 1 true;
    "cuEventSynchronize" cuEventSynchronize 2000 1 false;
    "cuFuncGetAttribute" cuFuncGetAttribute 2020 1 false;
    "cuFuncGetModule" cuFuncGetModule 11000 1 false;
    "cuFuncGetName" cuFuncGetName 12030 1 false;
    "cuFuncGetParamCount" cuFuncGetParamCount 13020 1 false;
    "cuFuncGetParamInfo" cuFuncGetParamInfo 12040 1 false;
    "cuFuncIsLoaded" cuFuncIsLoaded 12040 1 false;
    "cuFuncLoad" cuFuncLoad 12040 1 false;
    "cuFuncSetAttribute" cuFuncSetAttribute 9000 1 false;
    "cuFuncSetCacheConfig" cuFuncSetCacheConfig 3000 1 false;
    "cuFuncSetSharedMemConfig" cuFuncSetSharedMemConfig 4020 1 false;
    "cuGetErrorName" cuGetErrorName 6000 1 false;
    "cuGetErrorString" cuGetErrorString 6000 1 false;
    "cuGetExportTable" cuGetExportTable 3000 1 false;
    "cuGetProcAddress" cuGetProcAddress 11030 1 false;
    "cuGetProcAddress" cuGetProcAddress_v2 12000 2 false;
    "cuInit" cuInit 2000 1 false;
    "cuKernelGetAttribute" cuKernelGetAttribute 12000 1 false;
    "cuKernelGetFunction" cuKernelGetFunction 12000 1 false;
    "cuKernelGetLibrary" cuKernelGetLibrary 12050 1 false;
    "cuKernelGetName" cuKernelGetName 12030 1 false;
    "cuKernelGetParamCount" cuKernelGetParamCount 13020 1 false;
    "cuKernelGetParamInfo" cuKernelGetParamInfo 12040 1 false;
    "cuKernelSetAttribute" cuKernelSetAttribute 12000 1 false;
    "cuKernelSetCacheConfig" cuKernelSetCacheConfig 12000 1 false;
    "cuLaunchHostFunc" cuLaunchHostFunc 10000 1 false;
    "cuLaunchHostFunc" cuLaunchHostFunc_ptsz 10000 1 true;
    "cuLaunchKernel" cuLaunchKernel 4000 1 false;
    "cuLaunchKernelEx" cuLaunchKernelEx 11060 1 false;
    "cuLaunchKernelEx" cuLaunchKernelEx_ptsz 11060 1 true;
    "cuLaunchKernel" cuLaunchKernel_ptsz 7000 1 true;
    "cuLibraryEnumerateKernels" cuLibraryEnumerateKernels 12040 1 false;
    "cuLibraryGetGlobal" cuLibraryGetGlobal 12000 1 false;
    "cuLibraryGetKernel" cuLibraryGetKernel 12000 1 false;
    "cuLibraryGetKernelCount" cuLibraryGetKernelCount 12040 1 false;
    "cuLibraryGetManaged" cuLibraryGetManaged 12000 1 false;
    "cuLibraryGetModule" cuLibraryGetModule 12000 1 false;
    "cuLibraryGetUnifiedFunction" cuLibraryGetUnifiedFunction 12000 1 false;
    "cuLibraryLoadData" cuLibraryLoadData 12000 1 false;
    "cuLibraryLoadFromFile" cuLibraryLoadFromFile 12000 1 false;
    "cuLibraryUnload" cuLibraryUnload 12000 1 false;
    "cuLinkAddData" cuLinkAddData 5050 1 false;
    "cuLinkAddData" cuLinkAddData_v2 6050 2 false;
    "cuLinkAddFile" cuLinkAddFile 5050 1 false;
    "cuLinkAddFile" cuLinkAddFile_v2 6050 2 false;
    "cuLinkComplete" cuLinkComplete 5050 1 false;
    "cuLinkCreate" cuLinkCreate 5050 1 false;
    "cuLinkCreate" cuLinkCreate_v2 6050 2 false;
    "cuLinkDestroy" cuLinkDestroy 5050 1 false;
    "cuMemAddressFree" cuMemAddressFree 10020 1 false;
    "cuMemAddressReserve" cuMemAddressReserve 10020 1 false;
    "cuMemAdvise" cuMemAdvise 8000 1 false;
    "cuMemAdvise" cuMemAdvise_v2 12020 2 false;
    "cuMemAllocAsync" cuMemAllocAsync 11020 1 false;
    "cuMemAllocAsync" cuMemAllocAsync_ptsz 11020 1 true;
    "cuMemAllocFromPoolAsync" cuMemAllocFromPoolAsync 11020 1 false;
    "cuMemAllocFromPoolAsync" cuMemAllocFromPoolAsync_ptsz 11020 1 true;
    "cuMemAllocHost" cuMemAllocHost_v2 3020 2 false;
    "cuMemAllocManaged" cuMemAllocManaged 6000 1 false;
    "cuMemAllocPitch" cuMemAllocPitch_v2 3020 2 false;
    "cuMemAlloc" cuMemAlloc_v2 3020 2 false;
    "cuMemCreate" cuMemCreate 10020 1 false;
    "cuMemExportToShareableHandle" cuMemExportToShareableHandle 10020 1 false;
    "cuMemFreeAsync" cuMemFreeAsync 11020 1 false;
    "cuMemFreeAsync" cuMemFreeAsync_ptsz 11020 1 true;
    "cuMemFreeHost" cuMemFreeHost 2000 1 false;
    "cuMemFree" cuMemFree_v2 3020 2 false;
    "cuMemGetAccess" cuMemGetAccess 10020 1 false;
    "cuMemGetAddressRange" cuMemGetAddressRange_v2 3020 2 false;
    "cuMemGetAllocationGranularity" cuMemGetAllocationGranularity 10020 1 false;
    "cuMemGetAllocationPropertiesFromHandle" cuMemGetAllocationPropertiesFromHandle 10020 1 false;
    "cuMemGetDefaultMemPool" cuMemGetDefaultMemPool 13000 1 false;
    "cuMemGetHandleForAddressRange" cuMemGetHandleForAddressRange 11070 1 false;
    "cuMemGetInfo" cuMemGetInfo_v2 3020 2 false;
    "cuMemGetMemPool" cuMemGetMemPool 13000 1 false;
    "cuMemHostAlloc" cuMemHostAlloc 2020 1 false;
    "cuMemHostGetDevicePointer" cuMemHostGetDevicePointer_v2 3020 2 false;
    "cuMemHostGetFlags" cuMemHostGetFlags 2030 1 false;
    "cuMemHostRegister" cuMemHostRegister 4000 1 false;
    "cuMemHostRegister" cuMemHostRegister_v2 6050 2 false;
    "cuMemHostUnregister" cuMemHostUnregister 4000 1 false;
    "cuMemMap" cuMemMap 10020 1 false;
    "cuMemPoolCreate" cuMemPoolCreate 11020 1 false;
    "cuMemPoolDestroy" cuMemPoolDestroy 11020 1 false;
    "cuMemPoolGetAccess" cuMemPoolGetAccess 11020 1 false;
    "cuMemPoolGetAttribute" cuMemPoolGetAttribute 11020 1 false;
    "cuMemPoolSetAccess" cuMemPoolSetAccess 11020 1 false;
    "cuMemPoolSetAttribute" cuMemPoolSetAttribute 11020 1 false;
    "cuMemPoolTrimTo" cuMemPoolTrimTo 11020 1 false;
    "cuMemPrefetchAsync" cuMemPrefetchAsync 8000 1 false;
    "cuMemPrefetchAsync" cuMemPrefetchAsync_ptsz 8000 1 true;
    "cuMemPrefetchAsync" cuMemPrefetchAsync_v2 12020 2 false;
    "cuMemPrefetchAsync" cuMemPrefetchAsync_v2_ptsz 12020 2 true;
    "cuMemRelease" cuMemRelease 10020 1 false;
    "cuMemRetainAllocationHandle" cuMemRetainAllocationHandle 11000 1 false;
    "cuMemSetAccess" cuMemSetAccess 10020 1 false;
    "cuMemUnmap" cuMemUnmap 10020 1 false;
    "cuMemcpy" cuMemcpy 4000 1 false;
    "cuMemcpy2DAsync" cuMemcpy2DAsync_v2 3020 2 false;
    "cuMemcpy2DAsync" cuMemcpy2DAsync_v2_ptsz 7000 2 true;
    "cuMemcpy2DUnaligned" cuMemcpy2DUnaligned_v2 3020 2 false;
    "cuMemcpy2DUnaligned" cuMemcpy2DUnaligned_v2_ptds 7000 2 true;
    "cuMemcpy2D" cuMemcpy2D_v2 3020 2 false;
    "cuMemcpy2D" cuMemcpy2D_v2_ptds 7000 2 true;
    "cuMemcpyAsync" cuMemcpyAsync 4000 1 false;
    "cuMemcpyAsync" cuMemcpyAsync_ptsz 7000 1 true;
    "cuMemcpyDtoDAsync" cuMemcpyDtoDAsync_v2 3020 2 false;
    "cuMemcpyDtoDAsync" cuMemcpyDtoDAsync_v2_ptsz 7000 2 true;
    "cuMemcpyDtoD" cuMemcpyDtoD_v2 3020 2 false;
    "cuMemcpyDtoD" cuMemcpyDtoD_v2_ptds 7000 2 true;
    "cuMemcpyDtoHAsync" cuMemcpyDtoHAsync_v2 3020 2 false;
    "cuMemcpyDtoHAsync" cuMemcpyDtoHAsync_v2_ptsz 7000 2 true;
    "cuMemcpyDtoH" cuMemcpyDtoH_v2 3020 2 false;
    "cuMemcpyDtoH" cuMemcpyDtoH_v2_ptds 7000 2 true;
    "cuMemcpyHtoDAsync" cuMemcpyHtoDAsync_v2 3020 2 false;
    "cuMemcpyHtoDAsync" cuMemcpyHtoDAsync_v2_ptsz 7000 2 true;
    "cuMemcpyHtoD" cuMemcpyHtoD_v2 3020 2 false;
    "cuMemcpyHtoD" cuMemcpyHtoD_v2_ptds 7000 2 true;
    "cuMemcpyPeer" cuMemcpyPeer 4000 1 false;
    "cuMemcpyPeerAsync" cuMemcpyPeerAsync 4000 1 false;
    "cuMemcpyPeerAsync" cuMemcpyPeerAsync_ptsz 7000 1 true;
    "cuMemcpyPeer" cuMemcpyPeer_ptds 7000 1 true;
    "cuMemcpy" cuMemcpy_ptds 7000 1 true;
    "cuMemsetD16Async" cuMemsetD16Async 3020 1 false;
    "cuMemsetD16Async" cuMemsetD16Async_ptsz 7000 1 true;
    "cuMemsetD16" cuMemsetD16_v2 3020 2 false;
    "cuMemsetD16" cuMemsetD16_v2_ptds 7000 2 true;
    "cuMemsetD2D16Async" cuMemsetD2D16Async 3020 1 false;
    "cuMemsetD2D16Async" cuMemsetD2D16Async_ptsz 7000 1 true;
    "cuMemsetD2D16" cuMemsetD2D16_v2 3020 2 false;
    "cuMemsetD2D16" cuMemsetD2D16_v2_ptds 7000 2 true;
    "cuMemsetD2D32Async" cuMemsetD2D32Async 3020 1 false;
    "cuMemsetD2D32Async" cuMemsetD2D32Async_ptsz 7000 1 true;
    "cuMemsetD2D32" cuMemsetD2D32_v2 3020 2 false;
    "cuMemsetD2D32" cuMemsetD2D32_v2_ptds 7000 2 true;
    "cuMemsetD2D8Async" cuMemsetD2D8Async 3020 1 false;
    "cuMemsetD2D8Async" cuMemsetD2D8Async_ptsz 7000 1 true;
    "cuMemsetD2D8" cuMemsetD2D8_v2 3020 2 false;
    "cuMemsetD2D8" cuMemsetD2D8_v2_ptds 7000 2 true;
    "cuMemsetD32Async" cuMemsetD32Async 3020 1 false;
    "cuMemsetD32Async" cuMemsetD32Async_ptsz 7000 1 true;
    "cuMemsetD32" cuMemsetD32_v2 3020 2 false;
    "cuMemsetD32" cuMemsetD32_v2_ptds 7000 2 true;
    "cuMemsetD8Async" cuMemsetD8Async 3020 1 false;
    "cuMemsetD8Async" cuMemsetD8Async_ptsz 7000 1 true;
    "cuMemsetD8" cuMemsetD8_v2 3020 2 false;
    "cuMemsetD8" cuMemsetD8_v2_ptds 7000 2 true;
    "cuModuleEnumerateFunctions" cuModuleEnumerateFunctions 12040 1 false;
    "cuModuleGetFunction" cuModuleGetFunction 2000 1 false;
    "cuModuleGetFunctionCount" cuModuleGetFunctionCount 12040 1 false;
    "cuModuleGetGlobal" cuModuleGetGlobal_v2 3020 2 false;
    "cuModuleGetLoadingMode" cuModuleGetLoadingMode 11070 1 false;
    "cuModuleGetSurfRef" cuModuleGetSurfRef 3000 1 false;
    "cuModuleGetTexRef" cuModuleGetTexRef 2000 1 false;
    "cuModuleLoad" cuModuleLoad 2000 1 false;
    "cuModuleLoadData" cuModuleLoadData 2000 1 false;
    "cuModuleLoadDataEx" cuModuleLoadDataEx 2010 1 false;
    "cuModuleLoadFatBinary" cuModuleLoadFatBinary 2000 1 false;
    "cuModuleUnload" cuModuleUnload 2000 1 false;
    "cuOccupancyAvailableDynamicSMemPerBlock" cuOccupancyAvailableDynamicSMemPerBlock 10020 1 false;
    "cuOccupancyMaxActiveBlocksPerMultiprocessor" cuOccupancyMaxActiveBlocksPerMultiprocessor 6050 1 false;
    "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags" cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags 7000 1 false;
    "cuOccupancyMaxActiveClusters" cuOccupancyMaxActiveClusters 11070 1 false;
    "cuOccupancyMaxPotentialBlockSize" cuOccupancyMaxPotentialBlockSize 6050 1 false;
    "cuOccupancyMaxPotentialBlockSizeWithFlags" cuOccupancyMaxPotentialBlockSizeWithFlags 7000 1 false;
    "cuOccupancyMaxPotentialClusterSize" cuOccupancyMaxPotentialClusterSize 11070 1 false;
    "cuPointerGetAttribute" cuPointerGetAttribute 4000 1 false;
    "cuPointerGetAttributes" cuPointerGetAttributes 7000 1 false;
    "cuPointerSetAttribute" cuPointerSetAttribute 6000 1 false;
    "cuProfilerStart" cuProfilerStart 4000 1 false;
    "cuProfilerStop" cuProfilerStop 4000 1 false;
    "cuStreamAddCallback" cuStreamAddCallback 5000 1 false;
    "cuStreamAddCallback" cuStreamAddCallback_ptsz 7000 1 true;
    "cuStreamAttachMemAsync" cuStreamAttachMemAsync 6000 1 false;
    "cuStreamAttachMemAsync" cuStreamAttachMemAsync_ptsz 7000 1 true;
    "cuStreamCopyAttributes" cuStreamCopyAttributes 11000 1 false;
    "cuStreamCopyAttributes" cuStreamCopyAttributes_ptsz 11000 1 true;
    "cuStreamCreate" cuStreamCreate 2000 1 false;
    "cuStreamCreateWithPriority" cuStreamCreateWithPriority 5050 1 false;
    "cuStreamDestroy" cuStreamDestroy 2000 1 false;
    "cuStreamDestroy" cuStreamDestroy_v2 4000 2 false;
    "cuStreamGetAttribute" cuStreamGetAttribute 11000 1 false;
    "cuStreamGetAttribute" cuStreamGetAttribute_ptsz 11000 1 true;
    "cuStreamGetCaptureInfo" cuStreamGetCaptureInfo_v2 11030 2 false;
    "cuStreamGetCaptureInfo" cuStreamGetCaptureInfo_v2_ptsz 11030 2 true;
    "cuStreamGetCaptureInfo" cuStreamGetCaptureInfo_v3 12030 3 false;
    "cuStreamGetCaptureInfo" cuStreamGetCaptureInfo_v3_ptsz 12030 3 true;
    "cuStreamGetCtx" cuStreamGetCtx 9020 1 false;
    "cuStreamGetCtx" cuStreamGetCtx_ptsz 9020 1 true;
    "cuStreamGetCtx" cuStreamGetCtx_v2 12050 2 false;
    "cuStreamGetCtx" cuStreamGetCtx_v2_ptsz 12050 2 true;
    "cuStreamGetDevice" cuStreamGetDevice 12080 1 false;
    "cuStreamGetDevice" cuStreamGetDevice_ptsz 12080 1 true;
    "cuStreamGetFlags" cuStreamGetFlags 5050 1 false;
    "cuStreamGetFlags" cuStreamGetFlags_ptsz 7000 1 true;
    "cuStreamGetId" cuStreamGetId 12000 1 false;
    "cuStreamGetId" cuStreamGetId_ptsz 12000 1 true;
    "cuStreamGetPriority" cuStreamGetPriority 5050 1 false;
    "cuStreamGetPriority" cuStreamGetPriority_ptsz 7000 1 true;
    "cuStreamIsCapturing" cuStreamIsCapturing 10000 1 false;
    "cuStreamIsCapturing" cuStreamIsCapturing_ptsz 10000 1 true;
    "cuStreamQuery" cuStreamQuery 2000 1 false;
    "cuStreamQuery" cuStreamQuery_ptsz 7000 1 true;
    "cuStreamSetAttribute" cuStreamSetAttribute 11000 1 false;
    "cuStreamSetAttribute" cuStreamSetAttribute_ptsz 11000 1 true;
    "cuStreamSynchronize" cuStreamSynchronize 2000 1 false;
    "cuStreamSynchronize" cuStreamSynchronize_ptsz 7000 1 true;
    "cuStreamWaitEvent" cuStreamWaitEvent 3020 1 false;
    "cuStreamWaitEvent" cuStreamWaitEvent_ptsz 7000 1 true;
    "cuThreadExchangeStreamCaptureMode" cuThreadExchangeStreamCaptureMode 10010 1 false;
}
