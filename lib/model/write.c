#include "model/write.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "base/leftover.h"
#include "base/mapped.h"
#include "base/sync.h"

enum { CACHE_LINE = 64 };

/* ---- plan ---- */

void out_matrix(struct out_tensor *t, const char *name, enum dtype type, size_t rows, size_t cols)
{
	*t = (struct out_tensor){ .rank = rows ? 2 : 1, .esize = (uint32_t)dtype_size(type) };
	snprintf(t->name, sizeof t->name, "%s", name);
	snprintf(t->type, sizeof t->type, "%s", dtype_name(type));
	t->shape[0] = rows ? rows : cols;
	t->shape[1] = rows ? cols : 0;
	t->bytes = (uint64_t)(rows ? rows : 1) * cols * t->esize;
}

void out_scale(struct out_tensor *t, const struct out_tensor *of)
{
	char name[sizeof t->name];

	snprintf(name, sizeof name, "%.*s_scale_inv", ST_MAX_NAME, of->name);
	out_matrix(t, name, DT_F32, (of->shape[0] + FP8_BLOCK - 1) / FP8_BLOCK,
		(of->shape[1] + FP8_BLOCK - 1) / FP8_BLOCK);
	t->follows = true;
}

int writer_add(struct writer *w, const struct out_tensor *t, struct ds_err *err)
{
	if (w->count == w->cap) {
		size_t cap = w->cap ? 2 * w->cap : 1024;
		struct out_tensor *p = mem_realloc(w->tensors, cap, sizeof *p);

		if (!p)
			return err_nomem(err, cap * sizeof *p, "the list of tensors");
		w->tensors = p;
		w->cap = cap;
	}
	w->tensors[w->count++] = *t;
	return 0;
}

/* Places of the tensors [first, end) within their file. */
static void place(struct writer *w, size_t first, size_t end)
{
	uint64_t at = 0;

	for (uint32_t size = ST_PLACE_FIRST; size; size /= 2)
		for (size_t i = first; i < end; i++) {
			struct out_tensor *t = &w->tensors[i];

			if (st_place_class(t->bytes, t->esize) != size)
				continue;
			t->offset = at;
			at += t->bytes;
		}
}

static size_t shard_end(const struct writer *w, size_t first)
{
	size_t end = first;

	while (end < w->count && w->tensors[end].shard == w->tensors[first].shard)
		end++;
	return end;
}

void writer_plan(struct writer *w, uint64_t shard)
{
	uint64_t room = 0;

	w->shards = 0;
	w->bytes = 0;
	for (size_t i = 0; i < w->count; i++) {
		struct out_tensor *t = &w->tensors[i];
		uint64_t together = t->bytes;

		for (size_t k = i + 1; k < w->count && w->tensors[k].follows; k++)
			together += w->tensors[k].bytes;
		w->bytes += t->bytes;
		if (!w->shards || (together > room && !t->follows)) {
			w->shards++;
			room = shard;
		}
		room -= t->bytes < room ? t->bytes : room;
		t->shard = w->shards - 1;
	}
	for (size_t i = 0, end; i < w->count; i = end) {
		end = shard_end(w, i);
		place(w, i, end);
	}
}

/* ---- files ---- */

static int stopped(const struct writer *w, struct ds_err *err)
{
	return w->stop && *w->stop ? err_set(err, DS_TEMP, "stopped: '%s' was not made", w->out) : 0;
}

static int put(const struct writer *w, const struct out_file *f, const void *p, size_t n, uint64_t at,
	struct ds_err *err)
{
	while (n) {
		ssize_t k = pwrite(f->fd, p, n, (off_t)at);

		if (k < 0 && errno == EINTR && !stopped(w, err))
			continue;
		if (k < 0 && errno == EFAULT && mapped_lost(p, n, err)) /* copied from a file that was cut */
			return err->code;
		if (k <= 0)
			return err_errno(err, DS_IO, "cannot write '%s'", f->path);
		p = (const char *)p + k;
		n -= (size_t)k;
		at += (uint64_t)k;
	}
	return stopped(w, err);
}

static int create(const struct writer *w, const char *name, struct out_file *f, struct ds_err *err)
{
	f->fd = -1;
	f->data = 0;
	if (asprintf(&f->path, "%s/%s", w->tmp, name) < 0) {
		f->path = NULL;
		return err_nomem(err, strlen(w->tmp) + strlen(name) + 2, "a path");
	}
	f->fd = open(f->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	return f->fd < 0 ? err_errno(err, DS_IO, "cannot create '%s'", f->path) : 0;
}

int writer_close(struct out_file *f, int rc, struct ds_err *err)
{
	if (f->fd >= 0 && !rc)
		rc = sync_fd(f->fd, f->path, err);
	if (f->fd >= 0 && close(f->fd) < 0 && !rc)
		rc = err_errno(err, DS_IO, "cannot write '%s'", f->path);
	free(f->path);
	f->path = NULL;
	f->fd = -1;
	return rc;
}

int writer_text(const struct writer *w, const char *name, const void *p, size_t n, struct ds_err *err)
{
	struct out_file f;
	int rc = create(w, name, &f, err);

	if (!rc)
		rc = put(w, &f, p, n, 0, err);
	return writer_close(&f, rc, err);
}

int writer_put(const struct writer *w, const struct out_file *f, const struct out_tensor *t, uint64_t at, const void *p,
	size_t n, struct ds_err *err)
{
	return put(w, f, p, n, f->data + t->offset + at, err);
}

static void shard_name(const struct writer *w, size_t s, char *name, size_t size)
{
	if (w->shards == 1)
		snprintf(name, size, "model.safetensors");
	else
		snprintf(name, size, "model-%05zu-of-%05zu.safetensors", s + 1, w->shards);
}

static void describe(struct jw *w, const struct out_tensor *t)
{
	jw_key(w, t->name);
	jw_obj(w);
	jw_key(w, "dtype");
	jw_str(w, t->type);
	jw_key(w, "shape");
	jw_arr(w);
	for (uint32_t k = 0; k < t->rank; k++)
		jw_uint(w, t->shape[k]);
	jw_arr_end(w);
	jw_key(w, "data_offsets");
	jw_arr(w);
	jw_uint(w, t->offset);
	jw_uint(w, t->offset + t->bytes);
	jw_arr_end(w);
	jw_obj_end(w);
}

/* The header of file s; *bytes: of its tensors. */
static void shard_header(const struct writer *w, size_t s, struct buf *b, uint64_t *bytes)
{
	struct jw j;
	uint64_t n;

	*bytes = 0;
	buf_add(b, "12345678", 8);
	jw_init(&j, b);
	jw_obj(&j);
	jw_key(&j, "__metadata__");
	jw_obj(&j);
	jw_key(&j, "format");
	jw_str(&j, "pt");
	jw_obj_end(&j);
	for (size_t i = 0; i < w->count; i++) {
		if (w->tensors[i].shard != s)
			continue;
		describe(&j, &w->tensors[i]);
		*bytes += w->tensors[i].bytes;
	}
	jw_obj_end(&j);
	while (b->len % CACHE_LINE && !b->nomem)
		buf_str(b, " "); /* data at a multiple of a cache line */
	n = b->len - 8;
	for (size_t i = 0; i < 8 && !b->nomem; i++)
		b->p[i] = (char)(n >> 8 * i & 0xff);
}

int writer_open(const struct writer *w, size_t s, struct out_file *f, struct ds_err *err)
{
	struct buf head = { .p = NULL };
	char name[64];
	uint64_t bytes;
	int rc, full;

	shard_name(w, s, name, sizeof name);
	shard_header(w, s, &head, &bytes);
	*f = (struct out_file){ .fd = -1 };
	rc = head.nomem ? err_nomem(err, head.len, "a header") : create(w, name, f, err);
	/* a full disk shows now, not after minutes */
	if (!rc && (full = posix_fallocate(f->fd, 0, (off_t)(head.len + bytes))) != 0) {
		errno = full;
		rc = err_errno(err, DS_IO, "cannot write '%s'", f->path);
	}
	if (!rc)
		rc = put(w, f, head.p, head.len, 0, err);
	f->data = head.len;
	buf_free(&head);
	if (rc)
		writer_close(f, rc, err);
	return rc;
}

static int write_index(const struct writer *w, struct ds_err *err)
{
	struct buf b = { .p = NULL };
	struct jw j;
	char name[64];
	int rc;

	jw_init(&j, &b);
	jw_obj(&j);
	jw_key(&j, "metadata");
	jw_obj(&j);
	jw_key(&j, "total_size");
	jw_uint(&j, w->bytes);
	jw_obj_end(&j);
	jw_key(&j, "weight_map");
	jw_obj(&j);
	for (size_t i = 0; i < w->count; i++) {
		shard_name(w, w->tensors[i].shard, name, sizeof name);
		jw_key(&j, w->tensors[i].name);
		jw_str(&j, name);
	}
	jw_obj_end(&j);
	jw_obj_end(&j);
	buf_str(&b, "\n");
	rc = b.nomem ? err_nomem(err, b.len, "the index")
		     : writer_text(w, "model.safetensors.index.json", b.p, b.len, err);
	buf_free(&b);
	return rc;
}

/* ---- directories ---- */

/* What was there is exchanged, then removed: not before the new one has its name on disk. */
static int replace(struct writer *w, struct ds_err *err)
{
	char *old = w->tmp;
	int rc;

	if (renameat2(AT_FDCWD, w->tmp, AT_FDCWD, w->dir, RENAME_EXCHANGE) < 0)
		return err_errno(err, DS_IO, "cannot rename '%s' to '%s'", w->tmp, w->dir);
	leftover_done(w->tmp);
	w->tmp = NULL;
	rc = sync_parent(w->dir, err);
	if (!rc && leftover_delete(old) < 0)
		rc = err_errno(err, DS_IO, "cannot remove the old '%s', now '%s'", w->dir, old);
	free(old);
	return rc;
}

/* Puts the finished directory in its place. */
static int install(struct writer *w, struct ds_err *err)
{
	/* a file system without flags has rename, which does not replace a directory that is not empty */
	if (renameat2(AT_FDCWD, w->tmp, AT_FDCWD, w->dir, RENAME_NOREPLACE) < 0 &&
	    (errno != EINVAL || rename(w->tmp, w->dir) < 0)) {
		if (errno == EEXIST && w->force)
			return replace(w, err);
		if (errno == EEXIST)
			return err_set(err, DS_USAGE, "cannot make '%s': it exists; --force replaces it", w->dir);
		return err_errno(err, DS_IO, "cannot rename '%s' to '%s'", w->tmp, w->dir);
	}
	leftover_done(w->tmp);
	free(w->tmp);
	w->tmp = NULL;
	return sync_parent(w->dir, err);
}

static bool ends_with(const char *s, const char *end)
{
	size_t n = strlen(s), k = strlen(end);

	return n > k && !strcmp(s + n - k, end);
}

static bool belongs(const char *name)
{
	return ends_with(name, ".json") || ends_with(name, ".safetensors") || ends_with(name, ".jinja") ||
	       ends_with(name, ".model");
}

/* --force replaces a directory that has nothing but what a model has, never somebody's work. */
static int check_old(const struct writer *w, struct ds_err *err)
{
	struct stat st;
	struct dirent *e;
	DIR *d;
	int rc = 0;

	if (lstat(w->dir, &st) < 0)
		return 0;
	if (!w->force)
		return err_set(err, DS_USAGE, "cannot make '%s': it exists; --force replaces it", w->dir);
	if (!S_ISDIR(st.st_mode))
		return err_set(err, DS_USAGE, "cannot make '%s': it is there and no directory", w->dir);
	d = opendir(w->dir);
	if (!d)
		return err_errno(err, DS_IO, "cannot read '%s'", w->dir);
	while (!rc && (e = readdir(d)))
		if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..") && !belongs(e->d_name))
			rc = err_set(err, DS_USAGE, "cannot replace '%s': '%s' in it is no part of a model", w->dir,
				e->d_name);
	closedir(d);
	return rc;
}

int writer_begin(struct writer *w, struct ds_err *err)
{
	mode_t mask;
	int rc;

	w->dir = strdup(w->out);
	if (!w->dir)
		return err_nomem(err, strlen(w->out), "a path");
	for (size_t n = strlen(w->dir); n > 1 && w->dir[n - 1] == '/'; n--)
		w->dir[n - 1] = '\0';
	rc = *w->dir ? check_old(w, err) : err_set(err, DS_USAGE, "cannot make '': the name is empty");
	if (rc)
		return rc;
	if (asprintf(&w->tmp, "%s.tmp-XXXXXX", w->dir) < 0) {
		w->tmp = NULL;
		return err_nomem(err, strlen(w->dir) + 12, "a path");
	}
	if (!mkdtemp(w->tmp)) {
		rc = err_errno(err, DS_IO, "cannot create '%s'", w->tmp);
		free(w->tmp);
		w->tmp = NULL;
		return rc;
	}
	leftover_add(w->tmp);
	mask = umask(0);
	umask(mask);
	chmod(w->tmp, 0777 & ~mask);
	return 0;
}

int writer_finish(struct writer *w, struct ds_err *err)
{
	int rc = w->shards > 1 ? write_index(w, err) : 0;

	if (!rc)
		rc = sync_dir(w->tmp, err);
	return rc ? rc : install(w, err);
}

void writer_free(struct writer *w)
{
	if (w->tmp) {
		leftover_delete(w->tmp);
		leftover_done(w->tmp);
	}
	free(w->tmp);
	free(w->dir);
	free(w->tensors);
	w->tensors = NULL;
	w->tmp = w->dir = NULL;
	w->count = w->cap = 0;
}
