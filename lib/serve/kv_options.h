/*
 * The options of a stage that uses a store of KV blocks, and the making of its client.
 */
#ifndef DS_SERVE_KV_OPTIONS_H
#define DS_SERVE_KV_OPTIONS_H

#include "base/opt.h"

struct work;

struct kv_options {
	const char *addr;      /* of the store, NULL: none */
	const char *form;      /* "bf16" or "fp8" */
	const char *model;     /* what its blocks are told from others' by, NULL: a hash of all weights */
	const char *password;  /* a file, for Redis; NULL: none */
	int64_t timeout_ns, block;
	bool pure;             /* blocks that decode made are not taken */
	/* set by the program */
	bool generated;        /* what decode makes is stored, too */
};

#define KV_OPTIONS(o) \
	{ .name = "kv", .arg = "ADDR", .help = "take KV blocks from this store, and put new ones there", \
	  .type = OPT_STR, .dst = &(o).addr, .env = true }, \
	{ .name = "kv-model", .arg = "NAME", .help = "name of these weights there, instead of a hash of all of them", \
	  .type = OPT_STR, .dst = &(o).model, .env = true }, \
	{ .name = "no-generated", .help = "leave blocks that decode made (--store-generated) to others", \
	  .type = OPT_FLAG, .dst = &(o).pure }, \
	{ .name = "kv-password-file", .arg = "FILE", .help = "its first line is the password of --kv redis://", \
	  .type = OPT_STR, .dst = &(o).password }, \
	{ .name = "kv-timeout", .arg = "TIME", .help = "most that the store may cost a request", .def = "2s", \
	  .type = OPT_TIME, .dst = &(o).timeout_ns, .env = true }, \
	{ .name = "kv-dtype", .arg = "bf16|fp8", .help = "how they are stored; fp8 is smaller and not exact", \
	  .def = "bf16", .type = OPT_STR, .dst = &(o).form, .env = true }, \
	{ .name = "kv-block", .arg = "N", .help = "tokens of a stored block, a multiple of 64", .def = "64", \
	  .type = OPT_INT, .dst = &(o).block, .min = 64, .max = 1024, .env = true }

/* DS_USAGE: one was given that says nothing. */
int kv_options_check(const struct kv_options *o, const struct opt_program *p, struct ds_err *err);
/* w: all but the store is open.  DS_USAGE, DS_CONFIG, DS_OS. */
int kv_options_open(struct work *w, const struct kv_options *o, uint64_t kv_memory, struct ds_err *err);

#endif
