# dsutils
#
#   make                 the programs, in build/bin
#   make check           installs what the tests need, builds and runs them all; TESTS='test_frame ds-frame' selects
#   make demo            asks the example model through the real pipeline
#   make bench           measures, beside a peer or a limit
#   make install         DESTDIR= PREFIX=/usr/local
#   make check-unit-full every shape of an expert-parallel unit: an hour; make soak-kills: 100 lost ranks, and the time it took
#   make deps            installs the packages that a build needs, or says which
#   make lint fuzz       FUZZ_SECONDS=300 FUZZERS='frame'
#
# SANITIZE=address,undefined and SANITIZE=thread build in directories of their own; WERROR=1 makes warnings errors.

CC           = gcc
CLANG        = clang-14
AR           = ar
INSTALL      = install
PREFIX       = /usr/local
FUZZ_SECONDS = 300
FUZZERS      =
TESTS        =
SANITIZE     =
WERROR       =

comma := ,
BUILD := build$(if $(SANITIZE),-$(subst $(comma),-,$(SANITIZE)))

# The C library of msgpack is called msgpack-c by newer releases.
PKGS := $(shell pkg-config --exists msgpack-c 2>/dev/null && echo msgpack-c || echo msgpack) libzstd libxxhash jansson libpcre2-8 libcrypto

WARN   = -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wformat=2 -Wvla \
         -Wwrite-strings -Wundef -Wcast-qual -Wpointer-arith -Wconversion -Wno-sign-conversion $(if $(WERROR),-Werror)
HARDEN = -D_FORTIFY_SOURCE=3 -fstack-protector-strong -fPIE
ifneq ($(SANITIZE),)
HARDEN = -fPIE -fsanitize=$(SANITIZE) -fno-omit-frame-pointer $(if $(findstring undefined,$(SANITIZE)),-fno-sanitize-recover=undefined)
LDSAN  = -fsanitize=$(SANITIZE)
endif
CFLAGS      ?= -O2 -g
ALL_CPPFLAGS = -D_GNU_SOURCE -Ilib -I. $(PKG_CFLAGS) $(CPPFLAGS)
ALL_CFLAGS   = -std=gnu11 $(CFLAGS) -ffp-contract=off $(WARN) $(HARDEN) -pthread
ALL_LDFLAGS  = -pie -Wl,-z,relro,-z,now -pthread $(LDSAN) $(LDFLAGS)
ALL_LDLIBS   = $(PKG_LIBS) -lm $(LDLIBS)
PKG_CFLAGS  := $(shell pkg-config --cflags-only-I $(PKGS) 2>/dev/null)
PKG_LIBS    := $(shell pkg-config --libs $(PKGS) 2>/dev/null)

LIB_SRC   := $(wildcard lib/*/*.c kernels/cpu/*.c)
PROGS     := $(patsubst cmd/%.c,%,$(wildcard cmd/*.c))
UNIT_SRC  := $(wildcard tests/unit/*.c)
BENCH_SRC := $(wildcard tests/bench/*.c)
FUZZ_SRC  := $(wildcard tests/fuzz/fuzz_*.c)
MAN       := $(wildcard man/*.[1-8])

object  = $(1:%.c=$(BUILD)/%.o)
BINS    := $(PROGS:%=$(BUILD)/bin/%)
UNITS   := $(UNIT_SRC:tests/unit/%.c=$(BUILD)/tests/%)
BENCHES := $(BENCH_SRC:tests/bench/%.c=$(BUILD)/bench/%)
REPLAYS := $(FUZZ_SRC:tests/fuzz/fuzz_%.c=$(BUILD)/replay/%)
FUZZED  := $(FUZZ_SRC:tests/fuzz/fuzz_%.c=$(BUILD)/fuzz/%)

all: $(BINS)
units: $(UNITS)
bench-programs: $(BENCHES)
replays: $(REPLAYS)
fuzzers: $(FUZZED)

# ---- compiling and linking ----

$(BUILD)/%.o: %.c $(BUILD)/.flags
	@mkdir -p $(@D)
	$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) $(ISA_FLAGS) $(TILE_FLAGS) -MMD -MP -c -o $@ $<

# Kernels for an instruction set are compiled with that set alone and chosen at run time.
AVX2   = -mavx2 -mfma -mf16c
AVX512 = $(AVX2) -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512
$(BUILD)/kernels/cpu/%_avx2.o: ISA_FLAGS = $(AVX2)
$(BUILD)/lib/base/%_avx2.o: ISA_FLAGS = -mavx2
$(BUILD)/kernels/cpu/%_avx512.o: ISA_FLAGS = $(AVX512)
$(BUILD)/kernels/cpu/%_avx512bf16.o: ISA_FLAGS = $(AVX512) -mavx512vbmi -mavx512bf16

# Sums of tiles are local arrays at constant places: watched one by one they would be two thirds of what a sanitizer build computes.
ifeq ($(filter gcc%,$(CC)) $(findstring address,$(SANITIZE)),gcc address)
$(BUILD)/kernels/cpu/gemm_%.o: TILE_FLAGS = --param asan-stack=0
endif

$(BUILD)/libds.a: $(call object,$(LIB_SRC)) $(BUILD)/.sources
	@rm -f $@
	$(AR) rcs $@ $(filter %.o,$^)

LINK = @mkdir -p $(@D)$(newline)$(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o %.a,$^) $(ALL_LDLIBS)
define newline


endef

$(BUILD)/bin/%: $(BUILD)/cmd/%.o $(BUILD)/libds.a
	$(LINK)
$(BUILD)/tests/%: $(BUILD)/tests/unit/%.o $(BUILD)/libds.a
	$(LINK)
$(BUILD)/bench/%: $(BUILD)/tests/bench/%.o $(BUILD)/libds.a
	$(LINK)
$(BUILD)/replay/%: $(BUILD)/tests/fuzz/fuzz_%.o $(BUILD)/tests/fuzz/replay.o $(BUILD)/libds.a
	$(LINK)
$(BUILD)/fuzz/%: LDSAN = -fsanitize=fuzzer,address,undefined
# No fuzzer calls a kernel; instrumented, the unrolled ones take minutes to compile.
build-fuzz/kernels/%.o: HARDEN = -fPIE
$(BUILD)/fuzz/%: $(BUILD)/tests/fuzz/fuzz_%.o $(BUILD)/libds.a
	$(LINK)

# Other flags or another list of files than last time: build again.
$(BUILD)/.flags: FORCE
	@pkg-config --exists $(PKGS) || { echo "make: libraries are missing (see 'pkg-config --print-errors --exists $(PKGS)'); run 'make deps'" >&2; exit 69; }
	@mkdir -p $(@D)
	$(call stamp,$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) $(ALL_LDFLAGS) $(ALL_LDLIBS) $(AVX512))
$(BUILD)/.sources: FORCE
	@mkdir -p $(@D)
	$(call stamp,$(LIB_SRC))
stamp = @printf '%s\n' '$(subst ','\'',$1)' >$@.new; cmp -s $@.new $@ && rm $@.new || mv $@.new $@
FORCE:

# ---- tests ----

# Prints nothing of its own but what tests/run prints; its last line is "N passed, N failed".
check:
	@sh tests/deps --install build test
	@$(MAKE) --no-print-directory $(if $(findstring -j,$(MAKEFLAGS)),,-j$$(nproc)) all units replays
	@DS_BUILD='$(BUILD)' DS_SANITIZE='$(SANITIZE)' sh tests/run $(TESTS)

check-unit-full: all
	@DS_BUILD='$(BUILD)' sh tests/unit-full product
soak-kills: all
	@DS_BUILD='$(BUILD)' sh tests/unit-full kills

demo: all
	@DS_BUILD='$(BUILD)' sh examples/demo.sh

bench: all bench-programs
	@DS_BUILD='$(BUILD)' sh tests/bench/run

lint:
	@sh tests/deps --install build test lint
	@CLANG='$(CLANG)' sh tests/lint/lint

fuzz:
	@sh tests/deps --install build fuzz
	@$(MAKE) --no-print-directory BUILD=build-fuzz CC='$(CLANG)' CFLAGS='-O1 -g' SANITIZE=fuzzer-no-link,address,undefined \
		$(if $(findstring -j,$(MAKEFLAGS)),,-j$$(nproc)) fuzzers
	@DS_BUILD=build-fuzz FUZZ_SECONDS='$(FUZZ_SECONDS)' sh tests/fuzz/run $(FUZZERS)

deps:
	@sh tests/deps --install build test

# ---- installing ----

BINDIR   = $(DESTDIR)$(PREFIX)/bin
MANDIR   = $(DESTDIR)$(PREFIX)/share/man
COMPDIR  = $(DESTDIR)$(PREFIX)/share/bash-completion/completions
SHAREDIR = $(DESTDIR)$(PREFIX)/share/dsutils

$(BUILD)/completion.bash: $(BINS) cmd/completion.sh
	@sh cmd/completion.sh $(BINS) >$@.new && mv $@.new $@

install: all $(BUILD)/completion.bash
	$(INSTALL) -d "$(BINDIR)" "$(MANDIR)/man1" "$(MANDIR)/man5" "$(MANDIR)/man7" "$(COMPDIR)" "$(SHAREDIR)"
	$(INSTALL) -m 755 $(BINS) "$(BINDIR)"
	for page in $(notdir $(MAN)); do $(INSTALL) -m 644 "man/$$page" "$(MANDIR)/man$${page##*.}" || exit 1; done
	for prog in $(PROGS); do $(INSTALL) -m 644 $(BUILD)/completion.bash "$(COMPDIR)/$$prog" || exit 1; done
	cp -R examples "$(SHAREDIR)"

uninstall:
	for prog in $(PROGS); do rm -f "$(BINDIR)/$$prog" "$(COMPDIR)/$$prog"; done
	for page in $(notdir $(MAN)); do rm -f "$(MANDIR)/man$${page##*.}/$$page"; done
	rm -rf "$(SHAREDIR)"

clean:
	rm -rf build build-*

.PHONY: all units bench-programs replays fuzzers check check-unit-full soak-kills demo bench lint fuzz deps install uninstall clean FORCE
.SECONDARY:
.DELETE_ON_ERROR:
-include $(wildcard $(patsubst %.c,$(BUILD)/%.d,$(LIB_SRC) $(PROGS:%=cmd/%.c) $(UNIT_SRC) $(BENCH_SRC) $(FUZZ_SRC) tests/fuzz/replay.c))
