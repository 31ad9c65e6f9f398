// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0
//
// A program that does nothing: as long as one runs, Wine keeps its services.
#include <windows.h>
int main(void) {
    for (;;) Sleep(INFINITE);
}
