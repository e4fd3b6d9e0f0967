# dsutils: make, make check, make demo, make bench, make install, make deps, make lint, make fuzz.
# SANITIZE=address,undefined or SANITIZE=thread build into directories of their own.

CC       = gcc
AR       = ar
PKGS     = msgpack libzstd libxxhash jansson libpcre2-8
SANITIZE =
WERROR   =

BUILD := build$(if $(SANITIZE),-$(subst $(,),-,$(SANITIZE)))
, := ,
BUILD := build$(if $(SANITIZE),-$(subst $(,),-,$(SANITIZE)))

WARN   = -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wformat=2 -Wvla \
         -Wwrite-strings -Wundef -Wcast-qual -Wpointer-arith -Wconversion -Wno-sign-conversion $(if $(WERROR),-Werror)
HARDEN = -D_FORTIFY_SOURCE=3 -fstack-protector-strong -fPIE
ifneq ($(SANITIZE),)
HARDEN = -fPIE -fsanitize=$(SANITIZE) -fno-omit-frame-pointer $(if $(findstring undefined,$(SANITIZE)),-fno-sanitize-recover=undefined)
LDSAN  = -fsanitize=$(SANITIZE)
endif
CPPFLAGS += -D_GNU_SOURCE -Ilib -I. $(shell pkg-config --cflags-only-I $(PKGS))
CFLAGS   ?= -O2 -g
ALL_CFLAGS = -std=gnu11 $(CFLAGS) -ffp-contract=off $(WARN) $(HARDEN) -pthread
LDFLAGS  += -pie -Wl,-z,relro,-z,now -pthread $(LDSAN)
LDLIBS   += $(shell pkg-config --libs $(PKGS)) -lm

LIB_SRC  := $(wildcard lib/*/*.c kernels/cpu/*.c)
LIB_OBJ  := $(LIB_SRC:%.c=$(BUILD)/%.o)
PROGS    := $(patsubst cmd/%.c,%,$(wildcard cmd/*.c))
BINS     := $(PROGS:%=$(BUILD)/bin/%)
UNIT_SRC := $(wildcard tests/unit/*.c)
UNITS    := $(UNIT_SRC:tests/unit/%.c=$(BUILD)/tests/%)

all: $(BINS)
units: $(UNITS)

$(BUILD)/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(ALL_CFLAGS) $(ISA_FLAGS) -MMD -MP -c -o $@ $<

# Kernels for an instruction set are compiled with that set alone and chosen at run time.
$(BUILD)/kernels/cpu/%_avx2.o: ISA_FLAGS = -mavx2 -mfma -mf16c
$(BUILD)/kernels/cpu/%_avx512.o: ISA_FLAGS = -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512
$(BUILD)/kernels/cpu/%_avx512bf16.o: ISA_FLAGS = -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vbmi -mavx512bf16 -mprefer-vector-width=512

$(BUILD)/libds.a: $(LIB_OBJ)
	@rm -f $@
	$(AR) rcs $@ $^

$(BUILD)/bin/%: $(BUILD)/cmd/%.o $(BUILD)/libds.a
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

$(BUILD)/tests/%: $(BUILD)/tests/unit/%.o $(BUILD)/libds.a
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

clean:
	rm -rf build build-*

.PHONY: all units clean
.SECONDARY:
-include $(LIB_OBJ:.o=.d) $(BINS:$(BUILD)/bin/%=$(BUILD)/cmd/%.d) $(UNIT_SRC:%.c=$(BUILD)/%.d)
