// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import "fmt"

// Code is an HRESULT.
type Code uint32

// The codes that HNS returns, as far as this package knows. See hcn/hcnerrors.go of
// microsoft/hcsshim.
const (
	OK                Code = 0
	NotImplemented    Code = 0x80004001
	InvalidParameter  Code = 0x80070057
	InvalidHandle     Code = 0x80070006
	GeneralFailure    Code = 0x8007001f
	NotFound          Code = 0x80070490 // also of load balancers
	AlreadyExists     Code = 0x800700b7
	ObjectExists      Code = 0x80071392
	ServerUnavailable Code = 0x800706ba // HNS does not run
	UnknownInterface  Code = 0x800706b5 // HNS starts or stops
	NetworkNotFound   Code = 0x803b0001
	EndpointNotFound  Code = 0x803b0002
	PortNotFound      Code = 0x803b0007 // of the virtual switch
	InvalidPolicy     Code = 0x803b000d
	InvalidPolicyType Code = 0x803b000e
	PortExists        Code = 0x803b0013
	InvalidJSON       Code = 0x803b001b
	InvalidIP         Code = 0x803b001e
	AddressReserved   Code = 0x803b002f
)

// texts are the messages of Windows for codes. Programs should not parse them.
var texts = map[Code]string{
	NotImplemented:    "Not implemented",
	InvalidParameter:  "The parameter is incorrect.",
	InvalidHandle:     "The handle is invalid.",
	GeneralFailure:    "A device attached to the system is not functioning.",
	NotFound:          "Element not found.",
	AlreadyExists:     "Cannot create a file when that file already exists.",
	ObjectExists:      "The object already exists.",
	ServerUnavailable: "The RPC server is unavailable.",
	UnknownInterface:  "The interface is unknown.",
	NetworkNotFound:   "The network was not found.",
	EndpointNotFound:  "The endpoint was not found.",
	PortNotFound:      "The specified port was not found.",
	InvalidPolicy:     "The provided policy configuration is invalid or missing parameters.",
	InvalidPolicyType: "The provided policy type is invalid.",
	PortExists:        "The specified port already exists.",
	InvalidJSON:       "JSON document is invalid.",
	InvalidIP:         "IP address is either invalid or not part of any configured subnet(s).",
	AddressReserved:   "An address provided is invalid or reserved.",
}

// String is the code in hexadecimal.
func (c Code) String() string { return fmt.Sprintf("%#08x", uint32(c)) }

// Error implements error.
func (c Code) Error() string {
	if text, ok := texts[c]; ok {
		return text + " (" + c.String() + ")"
	}
	return "HRESULT " + c.String()
}

// err is c as an error, nil for OK.
func (c Code) err() error {
	if c == OK {
		return nil
	}
	return c
}

// missing is the code for an object that does not exist.
func missing(kind Kind) Code {
	switch kind {
	case Network:
		return NetworkNotFound
	case Endpoint:
		return EndpointNotFound
	}
	return NotFound
}
