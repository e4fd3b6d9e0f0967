#include "model/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mapped.h"
#include "base/mem.h"
#include "model/scan.h"

/* Types of the format, with their bits. */
static const struct { const char *name; unsigned bytes; } format_types[] = {
	{ "BF16", 2 }, { "F8_E4M3", 1 }, { "F32", 4 }, { "F16", 2 }, { "U8", 1 }, { "I8", 1 }, { "BOOL", 1 },
	{ "I16", 2 }, { "U16", 2 }, { "I32", 4 }, { "U32", 4 }, { "I64", 8 }, { "U64", 8 }, { "F64", 8 },
	{ "F8_E5M2", 1 }, { "F8_E8M0", 1 }, { "C64", 8 },
};

struct parser {
	struct scan s;
	struct st_tensor *t;
	size_t count, cap;
	unsigned elem; /* bytes an element of the tensor being read */
	const char *name;
	struct ds_err *err;
};

static int bad(const struct parser *p, const struct st_tensor *t, const char *why)
{
	return err_set(p->err, DS_DATA, "cannot use '%s': tensor '%.*s': %s", p->name, (int)t->name_len, t->name, why);
}

static bool read_type(struct parser *p, struct st_tensor *t)
{
	struct span v;

	if (!scan_string(&p->s, &v))
		return false;
	for (size_t i = 0; i < ARRAY_LEN(format_types); i++) {
		if (span_is(v, format_types[i].name)) {
			memcpy(t->type_name, v.p, v.n);
			t->type = dtype_parse(format_types[i].name);
			p->elem = format_types[i].bytes;
			return true;
		}
	}
	return scan_fail(&p->s, "unknown dtype");
}

static bool read_shape(struct parser *p, struct st_tensor *t)
{
	if (!scan_take(&p->s, '['))
		return false;
	if (scan_maybe(&p->s, ']'))
		return true; /* a scalar */
	do {
		if (t->rank == ST_MAX_RANK)
			return scan_fail(&p->s, "more than 8 dimensions");
		if (!scan_uint(&p->s, &t->shape[t->rank++]))
			return false;
	} while (scan_maybe(&p->s, ','));
	return scan_take(&p->s, ']');
}

static bool read_offsets(struct parser *p, struct st_tensor *t)
{
	uint64_t end;

	if (!scan_take(&p->s, '[') || !scan_uint(&p->s, &t->begin) || !scan_take(&p->s, ',') ||
		!scan_uint(&p->s, &end) || !scan_take(&p->s, ']'))
		return false;
	if (end < t->begin)
		return scan_fail(&p->s, "data_offsets end before they begin");
	t->bytes = end - t->begin;
	return true;
}

/* {"dtype": .., "shape": [..], "data_offsets": [a, b]}, each once, in any order. */
static bool read_entry(struct parser *p, struct st_tensor *t)
{
	unsigned seen = 0;

	if (!scan_take(&p->s, '{'))
		return false;
	do {
		struct span key;
		unsigned bit;
		bool ok;

		if (!scan_string(&p->s, &key) || !scan_take(&p->s, ':'))
			return false;
		bit = span_is(key, "dtype") ? 1 : span_is(key, "shape") ? 2 : span_is(key, "data_offsets") ? 4 : 0;
		if (!bit)
			return scan_fail(&p->s, "unknown key in a tensor's entry");
		if (seen & bit)
			return scan_fail(&p->s, "a key twice in a tensor's entry");
		seen |= bit;
		ok = bit == 1 ? read_type(p, t) : bit == 2 ? read_shape(p, t) : read_offsets(p, t);
		if (!ok)
			return false;
	} while (scan_maybe(&p->s, ','));
	if (!scan_take(&p->s, '}'))
		return false;
	return seen == 7 || scan_fail(&p->s, "dtype, shape or data_offsets is missing");
}

static struct st_tensor *next_tensor(struct parser *p)
{
	if (p->count == p->cap) {
		size_t cap = p->cap ? 2 * p->cap : 256;
		struct st_tensor *t = mem_realloc(p->t, cap, sizeof *t);

		if (!t)
			return NULL;
		p->t = t;
		p->cap = cap;
	}
	memset(&p->t[p->count], 0, sizeof *p->t);
	return &p->t[p->count];
}

static int check_size(const struct parser *p, const struct st_tensor *t, uint64_t data_bytes)
{
	uint64_t n = p->elem;

	for (uint32_t i = 0; i < t->rank; i++)
		if (__builtin_mul_overflow(n, t->shape[i], &n))
			return bad(p, t, "its shape overflows");
	if (n != t->bytes)
		return bad(p, t, "its data_offsets do not fit its shape and dtype");
	if (t->begin > data_bytes || t->bytes > data_bytes - t->begin)
		return bad(p, t, "its data lies beyond the end of the file (truncated?)");
	return 0;
}

static int not_json(const struct parser *p, const struct st_tensor *t)
{
	size_t at = (size_t)(p->s.p - p->s.start);

	if (t && t->name_len)
		return err_set(p->err, DS_DATA, "cannot use '%s': tensor '%.*s': %s (header byte %zu)", p->name,
			(int)t->name_len, t->name, p->s.why, at);
	return err_set(p->err, DS_DATA, "cannot use '%s': %s (header byte %zu)", p->name, p->s.why, at);
}

static int read_member(struct parser *p, uint64_t data_bytes)
{
	struct st_tensor *t;
	struct span key;
	int rc;

	if (!scan_string(&p->s, &key) || !scan_take(&p->s, ':'))
		return not_json(p, NULL);
	if (span_is(key, "__metadata__"))
		return scan_skip(&p->s) ? 0 : not_json(p, NULL);
	if (!key.n || key.n > ST_MAX_NAME) {
		scan_fail(&p->s, "a tensor's name is empty or too long");
		return not_json(p, NULL);
	}
	t = next_tensor(p);
	if (!t)
		return err_nomem(p->err, (p->cap + 1) * sizeof *t, "tensors");
	t->name = key.p;
	t->name_len = (uint32_t)key.n;
	if (!read_entry(p, t))
		return not_json(p, t);
	rc = check_size(p, t, data_bytes);
	p->count += !rc;
	return rc;
}

static int by_offset(const void *a, const void *b)
{
	const struct st_tensor *x = *(const struct st_tensor *const *)a, *y = *(const struct st_tensor *const *)b;

	if (x->begin != y->begin)
		return x->begin < y->begin ? -1 : 1;
	return (x->bytes > y->bytes) - (x->bytes < y->bytes); /* an empty one before a full one */
}

/* Tensors must cover the data area without holes and overlaps. */
static int check_cover(const struct parser *p, uint64_t data_bytes)
{
	const struct st_tensor **order = mem_array(p->count + 1, sizeof(*order));
	uint64_t at = 0;
	int rc = 0;

	if (!order)
		return err_nomem(p->err, p->count * sizeof(*order), "tensors");
	for (size_t i = 0; i < p->count; i++)
		order[i] = &p->t[i];
	qsort(order, p->count, sizeof(*order), by_offset);
	for (size_t i = 0; i < p->count && !rc; i++) {
		if (order[i]->begin < at)
			rc = bad(p, order[i], "its data overlaps another tensor's");
		else if (order[i]->begin > at)
			rc = bad(p, order[i], "a hole lies before its data");
		at = order[i]->begin + order[i]->bytes;
	}
	if (!rc && at != data_bytes)
		rc = err_set(p->err, DS_DATA, "cannot use '%s': %llu bytes after the last tensor", p->name,
			(unsigned long long)(data_bytes - at));
	free(order);
	return rc;
}

int st_parse(const char *header, size_t n, uint64_t data_bytes, const char *name, struct st_tensor **tensors,
	size_t *count, struct ds_err *err)
{
	struct parser p = { .name = name, .err = err };
	int rc = 0;

	*tensors = NULL;
	*count = 0;
	scan_init(&p.s, header, n);
	if (!scan_take(&p.s, '{'))
		return not_json(&p, NULL);
	if (!scan_maybe(&p.s, '}')) {
		do
			rc = read_member(&p, data_bytes);
		while (!rc && scan_maybe(&p.s, ','));
		if (!rc && !scan_take(&p.s, '}'))
			rc = not_json(&p, NULL);
	}
	if (!rc && !scan_finish(&p.s))
		rc = not_json(&p, NULL);
	if (!rc)
		rc = check_cover(&p, data_bytes);
	if (rc) {
		free(p.t);
		return rc;
	}
	*tensors = p.t;
	*count = p.count;
	return 0;
}

uint32_t st_place_class(uint64_t bytes, uint32_t elem)
{
	return bytes % ST_PLACE_FIRST ? elem : ST_PLACE_FIRST;
}

static int map_file(struct st_file *f, int fd, struct ds_err *err)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return err_errno(err, DS_OS, "cannot stat '%s'", f->path);
	if (!S_ISREG(st.st_mode))
		return err_set(err, DS_NOINPUT, "cannot read '%s': not a regular file", f->path);
	if (st.st_size < 8)
		return err_set(err, DS_DATA, "cannot use '%s': %lld bytes are no safetensors file", f->path,
			(long long)st.st_size);
	f->map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
	if (f->map == MAP_FAILED) {
		f->map = NULL;
		return err_errno(err, DS_OS, "cannot map '%s'", f->path);
	}
	f->size = (size_t)st.st_size;
	return mapped_add(&f->known, f->map, f->size, f->path, &st, err);
}

static int parse_file(struct st_file *f, struct ds_err *err)
{
	const unsigned char *b = f->map;
	uint64_t n = 0;
	int rc;

	for (int i = 7; i >= 0; i--)
		n = n << 8 | b[i];
	if (n > ST_MAX_HEADER)
		return err_set(err, DS_DATA, "cannot use '%s': a header of %llu bytes: no safetensors file", f->path,
			(unsigned long long)n);
	if (n > f->size - 8)
		return err_set(err, DS_DATA,
			"cannot use '%s': its header of %llu bytes lies beyond the end of the file (truncated?)",
			f->path, (unsigned long long)n);
	rc = st_parse((const char *)b + 8, (size_t)n, f->size - 8 - n, f->path, &f->tensors, &f->count, err);
	for (size_t i = 0; !rc && i < f->count; i++)
		f->tensors[i].data = b + 8 + n + f->tensors[i].begin;
	return rc;
}

int st_open(struct st_file *f, const char *path, struct ds_err *err)
{
	int fd, rc;

	memset(f, 0, sizeof *f);
	f->path = strdup(path);
	if (!f->path)
		return err_nomem(err, strlen(path) + 1, "a path");
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0) {
		rc = err_errno(err, DS_NOINPUT, "cannot open '%s'", path);
	} else {
		rc = map_file(f, fd, err);
		close(fd);
	}
	if (!rc)
		rc = parse_file(f, err);
	if (!rc)
		return 0;
	rc = st_result(f, rc, err);
	st_close(f);
	return rc;
}

int st_check(const struct st_file *f, bool accept, struct ds_err *err)
{
	return mapped_check(f->known, accept, err);
}

int st_result(const struct st_file *f, int rc, struct ds_err *err)
{
	struct ds_err why;

	if ((rc && rc != DS_DATA) || !f->known || !st_check(f, false, &why))
		return rc;
	*err = why;
	return err->code;
}

void st_close(struct st_file *f)
{
	mapped_remove(f->known);
	if (f->map)
		munmap(f->map, f->size);
	free(f->tensors);
	free(f->path);
	memset(f, 0, sizeof *f);
}
