// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0
//
// bcryptprimitives.dll, which every Go program needs and Wine 8 lacks.
#include <windows.h>
#define RtlGenRandom SystemFunction036
BOOLEAN NTAPI RtlGenRandom(PVOID, ULONG);
__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE p, SIZE_T n) { return RtlGenRandom(p, (ULONG)n); }
