#include "model/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/mem.h"
#include "model/file.h"
#include "model/scan.h"

enum { MAX_SHARDS = 1 << 11, MAX_INDEX_BYTES = 1 << 28 };

static const char index_name[] = "model.safetensors.index.json", single_name[] = "model.safetensors";

/* ---- table ---- */

static struct ckpt_tensor *slot(const struct checkpoint *c, const char *name, size_t n, uint64_t hash)
{
	for (size_t i = hash & c->mask;; i = (i + 1) & c->mask) {
		struct ckpt_tensor *e = &c->table[i];

		if (!e->t || (e->hash == hash && e->t->name_len == n && !memcmp(e->t->name, name, n)))
			return e;
	}
}

struct ckpt_tensor *ckpt_find(const struct checkpoint *c, const char *name, size_t n)
{
	struct ckpt_tensor *e = slot(c, name, n, XXH3_64bits(name, n));

	return e->t ? e : NULL;
}

static int by_name(const void *a, const void *b)
{
	const struct st_tensor *x = (*(struct ckpt_tensor *const *)a)->t, *y = (*(struct ckpt_tensor *const *)b)->t;
	uint32_t n = x->name_len < y->name_len ? x->name_len : y->name_len;
	int d = memcmp(x->name, y->name, n);

	return d ? d : (x->name_len > y->name_len) - (x->name_len < y->name_len);
}

static int add_file(struct checkpoint *c, const struct st_file *f, struct ds_err *err)
{
	for (size_t i = 0; i < f->count; i++) {
		const struct st_tensor *t = &f->tensors[i];
		uint64_t hash = XXH3_64bits(t->name, t->name_len);
		struct ckpt_tensor *e = slot(c, t->name, t->name_len, hash);

		if (e->t && e->file == f)
			return err_set(err, DS_DATA, "cannot use '%s': tensor '%.*s' is there twice", f->path,
				(int)t->name_len, t->name);
		if (e->t)
			return err_set(err, DS_DATA, "cannot use '%s': tensor '%.*s' is in '%s', too", f->path,
				(int)t->name_len, t->name, e->file->path);
		*e = (struct ckpt_tensor){ .t = t, .file = f, .hash = hash };
		c->order[c->count++] = e;
	}
	return 0;
}

static int make_table(struct checkpoint *c, struct ds_err *err)
{
	size_t total = 0, slots = 16;
	int rc = 0;

	for (size_t i = 0; i < c->file_count; i++)
		total += c->files[i].count;
	while (slots < 2 * total)
		slots *= 2;
	c->table = mem_calloc(slots, sizeof *c->table);
	c->order = mem_calloc(total + 1, sizeof(*c->order));
	if (!c->table || !c->order)
		return err_nomem(err, slots * sizeof *c->table, "the table of tensors");
	c->mask = slots - 1;
	for (size_t i = 0; i < c->file_count && !rc; i++)
		rc = add_file(c, &c->files[i], err);
	qsort(c->order, c->count, sizeof(*c->order), by_name);
	return rc;
}

/* ---- index ---- */

struct index_entry { struct span name; size_t file; };

struct index {
	struct text text;
	struct span *files;          /* [file_count], unique */
	struct index_entry *entries; /* [count] */
	size_t file_count, count, cap;
};

static void index_free(struct index *x)
{
	file_free(&x->text);
	free(x->files);
	free(x->entries);
}

/* A shard lies in the same directory: a plain file name. */
static bool plain_name(struct span f)
{
	return f.n && f.n <= 255 && !memchr(f.p, '/', f.n) && !memchr(f.p, '\0', f.n) && f.p[0] != '.';
}

static size_t file_number(struct index *x, struct span f)
{
	/* entries of one file mostly follow one another */
	for (size_t i = x->file_count; i-- > 0;)
		if (x->files[i].n == f.n && !memcmp(x->files[i].p, f.p, f.n))
			return i;
	if (x->file_count == MAX_SHARDS)
		return SIZE_MAX;
	x->files[x->file_count] = f;
	return x->file_count++;
}

static bool read_entry(struct index *x, struct scan *s)
{
	struct index_entry e;
	struct span f;

	if (!scan_string(s, &e.name) || !scan_take(s, ':') || !scan_string(s, &f))
		return false;
	if (!plain_name(f))
		return scan_fail(s, "a shard's name is no plain file name");
	e.file = file_number(x, f);
	if (e.file == SIZE_MAX)
		return scan_fail(s, "too many shards");
	if (x->count == x->cap) {
		size_t cap = x->cap ? 2 * x->cap : 1024;
		struct index_entry *p = mem_realloc(x->entries, cap, sizeof *p);

		if (!p)
			return scan_fail(s, "out of memory");
		x->entries = p;
		x->cap = cap;
	}
	x->entries[x->count++] = e;
	return true;
}

static bool read_map(struct index *x, struct scan *s)
{
	if (!scan_take(s, '{'))
		return false;
	if (scan_maybe(s, '}'))
		return true;
	do
		if (!read_entry(x, s))
			return false;
	while (scan_maybe(s, ','));
	return scan_take(s, '}');
}

static int index_parse(struct index *x, struct ds_err *err)
{
	struct scan s;
	bool seen = false;

	scan_init(&s, x->text.p, x->text.n);
	x->files = mem_array(MAX_SHARDS, sizeof *x->files);
	if (!x->files)
		return err_nomem(err, MAX_SHARDS * sizeof *x->files, "shards");
	if (scan_take(&s, '{') && !scan_maybe(&s, '}')) {
		do {
			struct span key;

			if (!scan_string(&s, &key) || !scan_take(&s, ':'))
				break;
			if (!span_is(key, "weight_map"))
				scan_skip(&s);
			else if (seen)
				scan_fail(&s, "weight_map is there twice");
			else
				seen = read_map(x, &s);
		} while (scan_maybe(&s, ','));
		if (!s.why)
			scan_take(&s, '}');
	}
	if (!scan_finish(&s))
		return err_set(
			err, DS_DATA, "cannot use '%s': %s (byte %zu)", x->text.path, s.why, (size_t)(s.p - s.start));
	if (!x->file_count)
		return err_set(err, DS_DATA, "cannot use '%s': weight_map is missing or empty", x->text.path);
	return 0;
}

/* What the index says is where lies there. */
static int check_index(const struct checkpoint *c, const struct index *x, struct ds_err *err)
{
	for (size_t i = 0; i < x->count; i++) {
		struct span n = x->entries[i].name;
		struct ckpt_tensor *e = ckpt_find(c, n.p, n.n);
		const struct st_file *f = &c->files[x->entries[i].file];

		if (!e || e->file != f)
			return err_set(err, DS_DATA,
				"cannot use '%s': tensor '%.*s' is missing, though '%s' places it there", f->path,
				(int)(n.n < 256 ? n.n : 256), n.p, index_name);
		if (e->listed)
			return err_set(err, DS_DATA, "cannot use '%s': tensor '%.*s' is listed twice", x->text.path,
				(int)n.n, n.p);
		e->listed = true;
	}
	return 0;
}

/* ---- opening ---- */

static int open_one(struct checkpoint *c, const char *dir, struct span name, struct ds_err *err)
{
	char *path;
	int rc;

	if (asprintf(&path, "%s/%.*s", dir, (int)name.n, name.p) < 0)
		return err_nomem(err, strlen(dir) + name.n + 2, "a path");
	rc = st_open(&c->files[c->file_count], path, err);
	c->file_count += !rc;
	free(path);
	return rc;
}

static bool has_file(const char *dir, const char *name)
{
	char *path;
	bool yes;

	if (asprintf(&path, "%s/%s", dir, name) < 0)
		return false;
	yes = access(path, F_OK) == 0;
	free(path);
	return yes;
}

static int open_single(struct checkpoint *c, const char *dir, struct ds_err *err)
{
	struct span name = { single_name, sizeof single_name - 1 };
	int rc;

	c->files = mem_calloc(1, sizeof *c->files);
	if (!c->files)
		return err_nomem(err, sizeof *c->files, "files");
	rc = open_one(c, dir, name, err);
	if (!rc)
		rc = make_table(c, err);
	for (size_t i = 0; !rc && i < c->count; i++)
		c->order[i]->listed = true;
	return rc;
}

static int open_shards(struct checkpoint *c, const char *dir, struct ds_err *err)
{
	struct index x = { .count = 0 };
	int rc = file_read(dir, index_name, MAX_INDEX_BYTES, &x.text, err);

	if (!rc)
		rc = index_parse(&x, err);
	/* two layouts in one directory: which one is meant? */
	if (!rc && has_file(dir, single_name)) {
		bool named = false;

		for (size_t i = 0; i < x.file_count; i++)
			named |= span_is(x.files[i], single_name);
		if (!named)
			rc = err_set(err, DS_DATA,
				"cannot use '%s': it has '%s' and '%s', which does not name it; remove one", dir,
				single_name, index_name);
	}
	if (!rc) {
		c->files = mem_calloc(x.file_count, sizeof *c->files);
		if (!c->files)
			rc = err_nomem(err, x.file_count * sizeof *c->files, "files");
	}
	for (size_t i = 0; !rc && i < x.file_count; i++)
		rc = open_one(c, dir, x.files[i], err);
	if (!rc)
		rc = make_table(c, err);
	if (!rc)
		rc = check_index(c, &x, err);
	index_free(&x);
	return rc;
}

int ckpt_open(struct checkpoint *c, const char *dir, struct ds_err *err)
{
	int rc;

	memset(c, 0, sizeof *c);
	if (has_file(dir, index_name))
		rc = open_shards(c, dir, err);
	else if (has_file(dir, single_name))
		rc = open_single(c, dir, err);
	else
		rc = err_set(err, DS_NOINPUT, "cannot open '%s': it has neither '%s' nor '%s'", dir, single_name,
			index_name);
	if (!rc)
		return 0;
	rc = ckpt_result(c, rc, err);
	ckpt_close(c);
	return rc;
}

int ckpt_check(const struct checkpoint *c, bool accept, struct ds_err *err)
{
	int rc = 0;

	for (size_t i = 0; i < c->file_count && !rc; i++)
		rc = st_check(&c->files[i], accept, err);
	return rc;
}

int ckpt_result(const struct checkpoint *c, int rc, struct ds_err *err)
{
	for (size_t i = 0; i < c->file_count; i++)
		rc = st_result(&c->files[i], rc, err);
	return rc;
}

void ckpt_close(struct checkpoint *c)
{
	for (size_t i = 0; i < c->file_count; i++)
		st_close(&c->files[i]);
	free(c->files);
	free(c->table);
	free(c->order);
	memset(c, 0, sizeof *c);
}
