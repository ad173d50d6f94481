//! Functions that the driver exports and that these devices or this simulation do not support.

use crate::abi::{Handle, export};
use crate::code::Code;
use crate::session::{self, device};

macro_rules! absent {
    ($($name:ident),* $(,)?) => { export! {$(
        fn $name(handle: Handle) {
            device(handle)?;
            Err(Code::NOT_SUPPORTED)
        }
    )*} };
}

macro_rules! absent_from_system {
    ($($name:ident),* $(,)?) => { export! {$(
        fn $name() {
            session::board()?;
            Err(Code::NOT_SUPPORTED)
        }
    )*} };
}

// Their first argument is a device; the others are ignored.
absent! {
    nvmlDeviceClearAccountingPids, nvmlDeviceClearCpuAffinity, nvmlDeviceClearEccErrorCounts,
    nvmlDeviceClearFieldValues, nvmlDeviceFreezeNvLinkUtilizationCounter,
    nvmlDeviceGetAPIRestriction, nvmlDeviceGetAccountingBufferSize, nvmlDeviceGetAccountingPids,
    nvmlDeviceGetAccountingStats, nvmlDeviceGetAccountingStats_v2, nvmlDeviceGetActiveVgpus,
    nvmlDeviceGetAdaptiveClockInfoStatus, nvmlDeviceGetAddressingMode,
    nvmlDeviceGetApplicationsClock, nvmlDeviceGetAttributes,     nvmlDeviceGetAutoBoostedClocksEnabled, nvmlDeviceGetBoardPartNumber,
    nvmlDeviceGetBridgeChipInfo, nvmlDeviceGetBusType, nvmlDeviceGetC2cModeInfoV,
    nvmlDeviceGetCapabilities, nvmlDeviceGetClkMonStatus, nvmlDeviceGetClockOffsets,
    nvmlDeviceGetConfComputeGpuAttestationReport,
    nvmlDeviceGetConfComputeGpuCertificate, nvmlDeviceGetConfComputeMemSizeInfo,
    nvmlDeviceGetConfComputeProtectedMemoryUsage, nvmlDeviceGetCoolerInfo, nvmlDeviceGetCpuAffinity,
    nvmlDeviceGetCpuAffinityWithinScope, nvmlDeviceGetCreatableVgpus,
    nvmlDeviceGetCurrentClockFreqs, nvmlDeviceGetDefaultApplicationsClock,
    nvmlDeviceGetDetailedEccErrors,     nvmlDeviceGetDramEncryptionMode, nvmlDeviceGetDriverModel, nvmlDeviceGetDriverModel_v2,
    nvmlDeviceGetDynamicPstatesInfo, nvmlDeviceGetEncoderCapacity, nvmlDeviceGetEncoderSessions,
    nvmlDeviceGetEncoderStats, nvmlDeviceGetFBCSessions, nvmlDeviceGetFBCStats,
    nvmlDeviceGetFanControlPolicy_v2, nvmlDeviceGetFanSpeedRPM, nvmlDeviceGetGpcClkMinMaxVfOffset,
    nvmlDeviceGetGpcClkVfOffset, nvmlDeviceGetGpuFabricInfo, nvmlDeviceGetGpuFabricInfoV,
    nvmlDeviceGetGpuInstancePossiblePlacements, nvmlDeviceGetGpuInstanceProfileInfoByIdV,
    nvmlDeviceGetGpuInstanceProfileInfoV, nvmlDeviceGetGpuInstanceRemainingCapacity,
    nvmlDeviceGetGpuOperationMode, nvmlDeviceGetGridLicensableFeatures,
    nvmlDeviceGetGridLicensableFeatures_v2, nvmlDeviceGetGridLicensableFeatures_v3,
    nvmlDeviceGetGridLicensableFeatures_v4, nvmlDeviceGetGspFirmwareMode,
    nvmlDeviceGetGspFirmwareVersion, nvmlDeviceGetHandleByUUIDV, nvmlDeviceGetHostVgpuMode,
    nvmlDeviceGetInforomConfigurationChecksum, nvmlDeviceGetInforomImageVersion,
    nvmlDeviceGetInforomVersion, nvmlDeviceGetIrqNum, nvmlDeviceGetMarginTemperature,
    nvmlDeviceGetMemClkMinMaxVfOffset, nvmlDeviceGetMemClkVfOffset, nvmlDeviceGetMemoryAffinity,
    nvmlDeviceGetMinMaxClockOfPState, nvmlDeviceGetMinMaxFanSpeed, nvmlDeviceGetModuleId,
    nvmlDeviceGetNumaNodeId, nvmlDeviceGetNvLinkCapability, nvmlDeviceGetNvLinkErrorCounter,
    nvmlDeviceGetNvLinkInfo, nvmlDeviceGetNvLinkRemoteDeviceType, nvmlDeviceGetNvLinkRemotePciInfo,
    nvmlDeviceGetNvLinkRemotePciInfo_v2, nvmlDeviceGetNvLinkUtilizationControl,
    nvmlDeviceGetNvLinkUtilizationCounter, nvmlDeviceGetNvLinkVersion, nvmlDeviceGetNvlinkBwMode,
    nvmlDeviceGetNvlinkSupportedBwModes, nvmlDeviceGetP2PStatus, nvmlDeviceGetPcieLinkMaxSpeed,
    nvmlDeviceGetPcieSpeed, nvmlDeviceGetPcieThroughput, nvmlDeviceGetPdi,
    nvmlDeviceGetPerformanceModes, nvmlDeviceGetPgpuMetadataString, nvmlDeviceGetPlatformInfo,
    nvmlDeviceGetPowerSource, nvmlDeviceGetRemappedRows_v2,
    nvmlDeviceGetRepairStatus, nvmlDeviceGetRetiredPages, nvmlDeviceGetRetiredPagesPendingStatus,
    nvmlDeviceGetRetiredPages_v2, nvmlDeviceGetRowRemapperHistogram, nvmlDeviceGetSamples,
    nvmlDeviceGetSramEccErrorStatus, nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts,
    nvmlDeviceGetSupportedGraphicsClocks, nvmlDeviceGetSupportedMemoryClocks,
    nvmlDeviceGetSupportedPerformanceStates, nvmlDeviceGetSupportedVgpus,
    nvmlDeviceGetTargetFanSpeed, nvmlDeviceGetThermalSettings, nvmlDeviceGetTopologyNearestGpus,
    nvmlDeviceGetTotalEnergyConsumption, nvmlDeviceGetVgpuCapabilities,
    nvmlDeviceGetVgpuHeterogeneousMode, nvmlDeviceGetVgpuInstancesUtilizationInfo,
    nvmlDeviceGetVgpuMetadata, nvmlDeviceGetVgpuProcessUtilization,
    nvmlDeviceGetVgpuProcessesUtilizationInfo, nvmlDeviceGetVgpuSchedulerCapabilities,
    nvmlDeviceGetVgpuSchedulerLog, nvmlDeviceGetVgpuSchedulerLog_v2,
    nvmlDeviceGetVgpuSchedulerState, nvmlDeviceGetVgpuSchedulerState_v2,
    nvmlDeviceGetVgpuTypeCreatablePlacements, nvmlDeviceGetVgpuTypeSupportedPlacements,
    nvmlDeviceGetVgpuUtilization, nvmlDeviceGetViolationStatus,
    nvmlDevicePowerSmoothingActivatePresetProfile, nvmlDevicePowerSmoothingSetState,
    nvmlDevicePowerSmoothingUpdatePresetProfileParam, nvmlDeviceResetApplicationsClocks,
    nvmlDeviceResetGpuLockedClocks, nvmlDeviceResetMemoryLockedClocks,
    nvmlDeviceResetNvLinkErrorCounters, nvmlDeviceResetNvLinkUtilizationCounter,
    nvmlDeviceSetAPIRestriction, nvmlDeviceSetAccountingMode, nvmlDeviceSetApplicationsClocks,
    nvmlDeviceSetAutoBoostedClocksEnabled, nvmlDeviceSetClockOffsets, nvmlDeviceSetComputeMode,
    nvmlDeviceSetConfComputeUnprotectedMemSize, nvmlDeviceSetCpuAffinity,
    nvmlDeviceSetDefaultAutoBoostedClocksEnabled, nvmlDeviceSetDefaultFanSpeed_v2,
    nvmlDeviceSetDramEncryptionMode, nvmlDeviceSetDriverModel, nvmlDeviceSetEccMode,
    nvmlDeviceSetFanControlPolicy, nvmlDeviceSetFanSpeed_v2, nvmlDeviceSetGpcClkVfOffset,
    nvmlDeviceSetGpuLockedClocks, nvmlDeviceSetGpuOperationMode, nvmlDeviceSetMemClkVfOffset,
    nvmlDeviceSetMemoryLockedClocks, nvmlDeviceSetNvLinkDeviceLowPowerThreshold, nvmlDeviceSetNvLinkUtilizationControl,
    nvmlDeviceSetNvlinkBwMode, nvmlDeviceSetPersistenceMode, nvmlDeviceSetPowerManagementLimit,
    nvmlDeviceSetPowerManagementLimit_v2, nvmlDeviceSetTemperatureThreshold,
    nvmlDeviceSetVgpuCapabilities, nvmlDeviceSetVgpuHeterogeneousMode,
    nvmlDeviceSetVgpuSchedulerState, nvmlDeviceSetVgpuSchedulerState_v2,
    nvmlDeviceSetVirtualizationMode, nvmlDeviceValidateInforom, nvmlDeviceVgpuForceGspUnload,
    nvmlDeviceWorkloadPowerProfileClearRequestedProfiles,
    nvmlDeviceWorkloadPowerProfileGetCurrentProfiles, nvmlDeviceWorkloadPowerProfileGetProfilesInfo,
    nvmlDeviceWorkloadPowerProfileSetRequestedProfiles,
}

absent_from_system! {
    nvmlComputeInstanceGetInfo, nvmlDeviceDiscoverGpus, nvmlDeviceModifyDrainState, nvmlDeviceQueryDrainState,
    nvmlDeviceRemoveGpu, nvmlDeviceRemoveGpu_v2, nvmlEventSetWait_v3,
    nvmlGetExcludedDeviceInfoByIndex, nvmlGetVgpuCompatibility, nvmlGetVgpuDriverCapabilities,
    nvmlGetVgpuVersion, nvmlGpmSetStreamingEnabled, nvmlGpuInstanceCreateComputeInstanceWithPlacement, nvmlGpuInstanceGetActiveVgpus, nvmlGpuInstanceGetComputeInstancePossiblePlacements,
    nvmlGpuInstanceGetComputeInstanceProfileInfoV,
    nvmlGpuInstanceGetComputeInstanceRemainingCapacity, nvmlGpuInstanceGetCreatableVgpus, nvmlGpuInstanceGetVgpuHeterogeneousMode, nvmlGpuInstanceGetVgpuSchedulerLog,
    nvmlGpuInstanceGetVgpuSchedulerLog_v2, nvmlGpuInstanceGetVgpuSchedulerState,
    nvmlGpuInstanceGetVgpuSchedulerState_v2, nvmlGpuInstanceGetVgpuTypeCreatablePlacements,
    nvmlGpuInstanceSetVgpuHeterogeneousMode, nvmlGpuInstanceSetVgpuSchedulerState,
    nvmlGpuInstanceSetVgpuSchedulerState_v2, nvmlSetVgpuVersion, nvmlSystemEventSetCreate,
    nvmlSystemEventSetFree, nvmlSystemEventSetWait, nvmlSystemGetConfComputeCapabilities,
    nvmlSystemGetConfComputeGpusReadyState, nvmlSystemGetConfComputeKeyRotationThresholdInfo,
    nvmlSystemGetConfComputeSettings, nvmlSystemGetConfComputeState, nvmlSystemGetDriverBranch,
    nvmlSystemGetHicVersion, nvmlSystemGetNvlinkBwMode, nvmlSystemGetTopologyGpuSet,
    nvmlSystemRegisterEvents, nvmlSystemSetConfComputeGpusReadyState,
    nvmlSystemSetConfComputeKeyRotationThresholdInfo, nvmlSystemSetNvlinkBwMode, nvmlUnitGetDevices,
    nvmlUnitGetFanSpeedInfo, nvmlUnitGetHandleByIndex, nvmlUnitGetLedState, nvmlUnitGetPsuInfo,
    nvmlUnitGetTemperature, nvmlUnitGetUnitInfo, nvmlUnitSetLedState,
    nvmlVgpuInstanceClearAccountingPids, nvmlVgpuInstanceGetAccountingMode,
    nvmlVgpuInstanceGetAccountingPids, nvmlVgpuInstanceGetAccountingStats,
    nvmlVgpuInstanceGetEccMode, nvmlVgpuInstanceGetEncoderCapacity,
    nvmlVgpuInstanceGetEncoderSessions, nvmlVgpuInstanceGetEncoderStats,
    nvmlVgpuInstanceGetFBCSessions, nvmlVgpuInstanceGetFBCStats, nvmlVgpuInstanceGetFbUsage,
    nvmlVgpuInstanceGetFrameRateLimit, nvmlVgpuInstanceGetGpuInstanceId,
    nvmlVgpuInstanceGetGpuPciId, nvmlVgpuInstanceGetLicenseInfo, nvmlVgpuInstanceGetLicenseInfo_v2,
    nvmlVgpuInstanceGetLicenseStatus, nvmlVgpuInstanceGetMdevUUID, nvmlVgpuInstanceGetMetadata,
    nvmlVgpuInstanceGetPlacementId, nvmlVgpuInstanceGetRuntimeStateSize, nvmlVgpuInstanceGetType,
    nvmlVgpuInstanceGetUUID, nvmlVgpuInstanceGetVmDriverVersion, nvmlVgpuInstanceGetVmID,
    nvmlVgpuInstanceSetEncoderCapacity, nvmlVgpuTypeGetBAR1Info, nvmlVgpuTypeGetCapabilities,
    nvmlVgpuTypeGetClass, nvmlVgpuTypeGetDeviceID, nvmlVgpuTypeGetFbReservation,
    nvmlVgpuTypeGetFrameRateLimit, nvmlVgpuTypeGetFramebufferSize,
    nvmlVgpuTypeGetGpuInstanceProfileId, nvmlVgpuTypeGetGspHeapSize, nvmlVgpuTypeGetLicense,
    nvmlVgpuTypeGetMaxInstances, nvmlVgpuTypeGetMaxInstancesPerGpuInstance,
    nvmlVgpuTypeGetMaxInstancesPerVm, nvmlVgpuTypeGetName, nvmlVgpuTypeGetNumDisplayHeads,
    nvmlVgpuTypeGetResolution,
}
