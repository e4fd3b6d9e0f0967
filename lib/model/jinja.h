/*
 * The part of Jinja that chat templates use, as Hugging Face sets it up: trim_blocks, lstrip_blocks, loop controls,
 * raise_exception, its tojson, no automatic escaping, nothing that changes its arguments.
 *
 * Statements: for (if, else, break, continue, loop.*), if/elif/else, set (also of namespace attributes, tuples, and
 * blocks), macro, filter, with, raw, generation (its body).  Functions: range, namespace, dict, raise_exception.
 * Filters, tests and methods of strings and dicts: see jinja_filter.c, jinja_test.c and jinja_method.c.  What it does
 * not know is an error that names it.
 *
 * Templates are hostile until rendered: nesting, steps, memory and output are bounded.
 */
#ifndef DS_MODEL_JINJA_H
#define DS_MODEL_JINJA_H

#include <jansson.h>

#include "base/err.h"
#include "base/mem.h"

enum {
	JINJA_MAX_SOURCE = 1 << 20,
	JINJA_MAX_NEST = 64,           /* brackets and blocks within each other, in the source */
	JINJA_MAX_DEPTH = 300,         /* of evaluation: expressions, blocks, macros that call macros */
	JINJA_MAX_STEPS = 4 << 20,
	JINJA_MAX_MEMORY = 128 << 20,
	JINJA_MAX_OUTPUT = 64 << 20,
};

/* Renders the template src[0 .. n) (UTF-8, checked) with the variables of a JSON object; appends to out.  DS_DATA with
 * the line of the template, also for what raise_exception says; DS_OS without memory.  Thread-safe. */
int jinja_render(const char *src, size_t n, const json_t *vars, struct buf *out, struct ds_err *err);

#endif
