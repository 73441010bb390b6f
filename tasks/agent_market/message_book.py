"""One order book in C++ for Python that sends its messages: one a call, or many."""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path
from threading import Lock

import torch
from torch import Tensor

from vecenv.core.checks import form
from vecenv.kernels.order_book.accounts import Accounts, empty_accounts
from vecenv.kernels.order_book.book import Book, empty_book
from vecenv.kernels.order_book.messages import BUY, Message, Report
from vecenv.system.native_library import built_library

SOURCE = Path(__file__).with_name("message_book.cpp")

_MESSAGE = struct.Struct(f"{len(Message._fields)}i")
_REPORT = struct.Struct(f"{len(Report._fields)}q")


class MessageBook:
    """A book with room for K orders a side, and the accounts of its owners, by the rules of the order book's page.

    Its numbers are those of `matching.process` and `accounts.settled`, holes included. Threads may share it: their
    messages wait for each other.

    Attributes:
        book: as tensors, which each message changes in place.
        accounts: cash and shares of all owners, likewise.

    Raises:
        ValueError: there is no room, or no owner.
        RuntimeError: no working C++ compiler was found.
    """

    def __init__(self, room: int, owners: int) -> None:
        empty = empty_book(room)
        # Those of an empty book share memory.
        self._book, self._accounts = type(empty)(*(tensor.clone() for tensor in empty)), empty_accounts(owners)
        library = built_library(SOURCE)
        if library is None:
            raise RuntimeError("there is no native book: no working C++ compiler was found")
        self._call = library.vecenv_book_messages
        # Held, as the addresses do not hold them.
        self._tensors = [*self._book, *self._accounts]
        addresses = [tensor.data_ptr() for tensor in self._tensors]
        memory = (ctypes.c_void_p * len(addresses))(*addresses)
        self._where = memory, ctypes.c_int64(room), ctypes.c_int64(owners)
        self._message, self._told = (ctypes.create_string_buffer(numbers.size) for numbers in (_MESSAGE, _REPORT))
        self._one = *self._where, ctypes.c_int64(1), self._message, self._told
        # Others may run while C++ does.
        self._turn = Lock()

    @property
    def book(self) -> Book:
        return self._book

    @property
    def accounts(self) -> Accounts:
        return self._accounts

    def send(
        self, kind: int, side: int = BUY, price: int = 0, quantity: int = 0, owner: int = 0, target: int = -1
    ) -> Report:
        """Carry out a message, whose numbers are those of `Message`, and return its report, of ints.

        Raises:
            ValueError: a number is no int32, or an order in the book is of an owner without an account.
        """
        with self._turn:
            try:
                _MESSAGE.pack_into(self._message, 0, kind, side, price, quantity, owner, target)
            except struct.error as error:
                given = Message(kind, side, price, quantity, owner, target)  # type: ignore[arg-type]
                raise ValueError(f"the numbers of a message are int32, got {given}") from error
            self._check(self._call(*self._one))
            return Report._make(_REPORT.unpack_from(self._told))

    def send_all(self, messages: Tensor) -> Report:
        """Carry out messages in turn and return their reports.

        Args:
            messages: a row for each, in the order of the fields of `Message`. Shape: (M, 6), int32.

        Returns:
            The numbers of all reports. Shape of each: (M,), int64.

        Raises:
            ValueError: the messages have another shape or type, or an order in the book is of an owner without an
                account.
        """
        width = len(Message._fields)
        known = messages.ndim == 2 and messages.shape[1] == width and messages.dtype == torch.int32
        if not known or messages.device.type != "cpu":
            raise ValueError(f"messages must have shape (M, {width}) and int32 on a CPU, got {form(messages)}")
        given, told = messages.contiguous(), torch.empty(len(messages), len(Report._fields), dtype=torch.int64)
        pointers = ctypes.c_void_p(given.data_ptr()), ctypes.c_void_p(told.data_ptr())
        with self._turn:
            self._check(self._call(*self._where, ctypes.c_int64(len(messages)), *pointers))
        return Report(*told.unbind(-1))

    def _check(self, carried_out: int) -> None:
        if not carried_out:
            raise ValueError("an order in the book is of an owner without an account: nothing was carried out")
