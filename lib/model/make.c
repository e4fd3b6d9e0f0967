#include "model/make.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "model/file.h"

struct item {
	struct weight w;       /* name as stored; a scale's shape is that of its blocks */
	size_t scale;          /* FP8 weights: index of the item of their scales; scales: SIZE_MAX */
	bool is_scale;
	enum dtype type;
	uint64_t bytes, offset;
	size_t shard;
};

struct maker {
	const struct make_options *o;
	struct make_plan *plan;
	struct item *items;
	size_t count, cap;
	struct buf config;
	char *tmp;             /* temporary directory, NULL where there is none yet */
	struct ds_err *err;
};

/* ---- plan ---- */

static int add_item(struct maker *m, const struct item *it)
{
	if (m->count == m->cap) {
		size_t cap = m->cap ? 2 * m->cap : 1024;
		struct item *p = mem_realloc(m->items, cap, sizeof *p);

		if (!p)
			return err_nomem(m->err, cap * sizeof *p, "the list of tensors");
		m->items = p;
		m->cap = cap;
	}
	m->items[m->count++] = *it;
	return 0;
}

static int plan_weight(void *arg, const struct weight *w)
{
	struct maker *m = arg;
	struct item it = { .w = *w, .scale = SIZE_MAX, .type = DT_BF16 }, s;
	int rc;

	if (w->optional)
		return 0; /* MTP layers share the main model's embedding and head */
	if (w->kind == WEIGHT_BIAS || m->plan->dtype == DT_F32)
		it.type = DT_F32;
	else if (m->plan->dtype == DT_F8_E4M3 && w->kind == WEIGHT_LINEAR)
		it.type = DT_F8_E4M3;
	it.bytes = (uint64_t)w->rows * w->cols * dtype_size(it.type);
	if (it.type != DT_F8_E4M3)
		return add_item(m, &it);
	it.scale = m->count + 1;
	rc = add_item(m, &it);
	if (rc)
		return rc;
	s = it;
	s.is_scale = true;
	s.scale = SIZE_MAX;
	s.type = DT_F32;
	s.w.rows = (w->rows + FP8_BLOCK - 1) / FP8_BLOCK;
	s.w.cols = (w->cols + FP8_BLOCK - 1) / FP8_BLOCK;
	s.bytes = (uint64_t)s.w.rows * s.w.cols * sizeof(float);
	strcat(s.w.name, "_scale_inv"); /* names have room: layout's are under 80 bytes */
	return add_item(m, &s);
}

/* Shards in the order of the list; within one, wider types first, so that everything lies at a multiple of its size. */
static void assign(struct maker *m)
{
	static const enum dtype order[] = { DT_F32, DT_BF16, DT_F8_E4M3 };
	uint64_t room = 0;

	for (size_t i = 0; i < m->count; i++) {
		struct item *it = &m->items[i];
		uint64_t together = it->bytes + (it->scale != SIZE_MAX ? m->items[it->scale].bytes : 0);

		m->plan->bytes += it->bytes;
		if (!m->plan->shards || (together > room && !it->is_scale)) {
			m->plan->shards++;
			room = m->o->shard;
		}
		room -= it->bytes < room ? it->bytes : room;
		it->shard = m->plan->shards - 1;
	}
	for (size_t s = 0, i = 0, end; s < m->plan->shards; s++, i = end) {
		uint64_t at = 0;

		for (end = i; end < m->count && m->items[end].shard == s; end++)
			;
		for (size_t k = 0; k < ARRAY_LEN(order); k++)
			for (size_t j = i; j < end; j++)
				if (m->items[j].type == order[k]) {
					m->items[j].offset = at;
					at += m->items[j].bytes;
				}
	}
	m->plan->tensors = m->count;
}

static int plan_all(struct maker *m)
{
	struct config *c = &m->plan->config;
	struct model *shell;
	int rc = make_config(m->o, &m->config, c, m->err);

	if (rc)
		return rc;
	m->plan->dtype = m->o->dtype != DT_NONE ? m->o->dtype : c->fp8 ? DT_F8_E4M3 : DT_BF16;
	shell = model_shell(c, "", c->mtp_layers, m->err);
	if (!shell)
		return m->err->code;
	rc = layout_walk(shell, plan_weight, m);
	model_free_shell(shell);
	if (!rc)
		assign(m);
	return rc;
}

/* ---- writing ---- */

static int stopped(const struct maker *m)
{
	return m->o->stop && *m->o->stop ? err_set(m->err, DS_TEMP, "stopped: '%s' was not made", m->o->out) : 0;
}

static int put(const struct maker *m, int fd, const char *path, const void *p, size_t n, uint64_t at)
{
	while (n) {
		ssize_t k = pwrite(fd, p, n, (off_t)at);

		if (k < 0 && errno == EINTR && !stopped(m))
			continue;
		if (k <= 0)
			return err_errno(m->err, DS_IO, "cannot write '%s'", path);
		p = (const char *)p + k;
		n -= (size_t)k;
		at += (uint64_t)k;
	}
	return stopped(m);
}

static int create(const struct maker *m, const char *name, char **path, int *fd)
{
	if (asprintf(path, "%s/%s", m->tmp, name) < 0) {
		*path = NULL;
		return err_nomem(m->err, strlen(m->tmp) + strlen(name) + 2, "a path");
	}
	*fd = open(*path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	return *fd < 0 ? err_errno(m->err, DS_IO, "cannot create '%s'", *path) : 0;
}

static int finish(const struct maker *m, int rc, char *path, int fd)
{
	if (fd >= 0 && close(fd) < 0 && !rc)
		rc = err_errno(m->err, DS_IO, "cannot write '%s'", path);
	free(path);
	return rc;
}

static int write_text(const struct maker *m, const char *name, const void *p, size_t n)
{
	char *path = NULL;
	int fd = -1, rc = create(m, name, &path, &fd);

	if (!rc)
		rc = put(m, fd, path, p, n, 0);
	return finish(m, rc, path, fd);
}

static void shard_name(const struct maker *m, size_t s, char *name, size_t size)
{
	if (m->plan->shards == 1)
		snprintf(name, size, "model.safetensors");
	else
		snprintf(name, size, "model-%05zu-of-%05zu.safetensors", s + 1, m->plan->shards);
}

static void shard_header(const struct maker *m, size_t first, size_t end, struct buf *b)
{
	struct jw w;
	uint64_t n;

	buf_add(b, "12345678", 8);
	jw_init(&w, b);
	jw_obj(&w);
	jw_key(&w, "__metadata__");
	jw_obj(&w);
	jw_key(&w, "format");
	jw_str(&w, "pt");
	jw_obj_end(&w);
	for (size_t i = first; i < end; i++) {
		const struct item *it = &m->items[i];
		bool vector = !it->is_scale && (it->w.kind == WEIGHT_NORM || it->w.kind == WEIGHT_BIAS);

		jw_key(&w, it->w.name);
		jw_obj(&w);
		jw_key(&w, "dtype");
		jw_str(&w, dtype_name(it->type));
		jw_key(&w, "shape");
		jw_arr(&w);
		if (!vector)
			jw_uint(&w, it->w.rows);
		jw_uint(&w, it->w.cols);
		jw_arr_end(&w);
		jw_key(&w, "data_offsets");
		jw_arr(&w);
		jw_uint(&w, it->offset);
		jw_uint(&w, it->offset + it->bytes);
		jw_arr_end(&w);
		jw_obj_end(&w);
	}
	jw_obj_end(&w);
	while (b->len % 64 && !b->nomem)
		buf_str(b, " "); /* data at a multiple of a cache line */
	n = b->len - 8;
	for (size_t i = 0; i < 8 && !b->nomem; i++)
		b->p[i] = (char)(n >> 8 * i & 0xff);
}

/* Scratch for one band of rows. */
struct band {
	uint16_t *index;
	void *out;
	float *scale;
};

static void band_free(struct band *b)
{
	free(b->index);
	free(b->out);
	free(b->scale);
}

static int band_alloc(const struct maker *m, size_t first, size_t end, struct band *b)
{
	size_t cols = 1;

	for (size_t i = first; i < end; i++)
		cols = m->items[i].w.cols > cols ? m->items[i].w.cols : cols;
	b->index = mem_array(MAKE_BAND * cols, sizeof *b->index);
	b->out = mem_array(MAKE_BAND * cols, sizeof(float));
	b->scale = mem_array(cols / FP8_BLOCK + 1, sizeof(float));
	if (b->index && b->out && b->scale)
		return 0;
	return err_nomem(m->err, MAKE_BAND * cols * 6, "rows of weights");
}

static int write_tensor(const struct maker *m, const struct make_source *src, const struct item *it, int fd,
	const char *path, uint64_t data, const struct band *b)
{
	size_t blocks = (it->w.cols + FP8_BLOCK - 1) / FP8_BLOCK, esize = dtype_size(it->type);
	int rc = 0;

	for (size_t r = 0; r < it->w.rows && !rc; r += MAKE_BAND) {
		size_t n = it->w.rows - r < MAKE_BAND ? it->w.rows - r : MAKE_BAND;

		make_rows(src, &it->w, m->o->seed, it->type, m->plan->config.ue8m0, r, n, b->index, b->out, b->scale);
		rc = put(m, fd, path, b->out, n * it->w.cols * esize,
			data + it->offset + (uint64_t)r * it->w.cols * esize);
		if (!rc && it->scale != SIZE_MAX)
			rc = put(m, fd, path, b->scale, blocks * sizeof(float),
				data + m->items[it->scale].offset + r / FP8_BLOCK * blocks * sizeof(float));
	}
	return rc;
}

static int write_shard(const struct maker *m, const struct make_source *src, size_t s, size_t first, size_t end)
{
	struct buf head = { .p = NULL };
	struct band b = { NULL, NULL, NULL };
	char name[64], *path = NULL;
	uint64_t bytes = 0;
	int fd = -1, rc, full;

	shard_name(m, s, name, sizeof name);
	shard_header(m, first, end, &head);
	for (size_t i = first; i < end; i++)
		bytes += m->items[i].bytes;
	rc = head.nomem ? err_nomem(m->err, head.len, "a header") : band_alloc(m, first, end, &b);
	if (!rc)
		rc = create(m, name, &path, &fd);
	/* a full disk shows now, not after minutes */
	if (!rc && (full = posix_fallocate(fd, 0, (off_t)(head.len + bytes))) != 0) {
		errno = full;
		rc = err_errno(m->err, DS_IO, "cannot write '%s'", path);
	}
	if (!rc)
		rc = put(m, fd, path, head.p, head.len, 0);
	for (size_t i = first; i < end && !rc; i++)
		if (!m->items[i].is_scale)
			rc = write_tensor(m, src, &m->items[i], fd, path, head.len, &b);
	band_free(&b);
	buf_free(&head);
	return finish(m, rc, path, fd);
}

static int write_index(const struct maker *m)
{
	struct buf b = { .p = NULL };
	struct jw w;
	char name[64];
	int rc;

	jw_init(&w, &b);
	jw_obj(&w);
	jw_key(&w, "metadata");
	jw_obj(&w);
	jw_key(&w, "total_size");
	jw_uint(&w, m->plan->bytes);
	jw_obj_end(&w);
	jw_key(&w, "weight_map");
	jw_obj(&w);
	for (size_t i = 0; i < m->count; i++) {
		shard_name(m, m->items[i].shard, name, sizeof name);
		jw_key(&w, m->items[i].w.name);
		jw_str(&w, name);
	}
	jw_obj_end(&w);
	jw_obj_end(&w);
	buf_str(&b, "\n");
	rc = b.nomem ? err_nomem(m->err, b.len, "the index")
		     : write_text(m, "model.safetensors.index.json", b.p, b.len);
	buf_free(&b);
	return rc;
}

static int copy_tokenizer(const struct maker *m)
{
	static const char *const names[] = { "tokenizer.json", "tokenizer_config.json", "generation_config.json" };

	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		struct text t;
		/* only the first is needed */
		int rc = (i ? file_read_if_there : file_read)(m->o->tokenizer, names[i], 1 << 28, &t, m->err);

		if (rc)
			return rc;
		if (!t.p)
			continue;
		rc = write_text(m, names[i], t.p, t.n);
		file_free(&t);
		if (rc)
			return rc;
	}
	return 0;
}

static int write_all(const struct maker *m)
{
	struct make_source *src = mem_calloc(1, sizeof *src);
	int rc = src ? 0 : err_nomem(m->err, sizeof *src, "random values");

	if (!rc) {
		make_source_init(src);
		rc = write_text(m, "config.json", m->config.p, m->config.len);
	}
	if (!rc && m->o->tokenizer)
		rc = copy_tokenizer(m);
	for (size_t s = 0, i = 0, end; s < m->plan->shards && !rc; s++, i = end) {
		for (end = i; end < m->count && m->items[end].shard == s; end++)
			;
		rc = write_shard(m, src, s, i, end);
	}
	if (!rc && m->plan->shards > 1)
		rc = write_index(m);
	free(src);
	return rc;
}

/* ---- directories ---- */

/* Removes a directory of files (ours are flat). */
static int remove_dir(const char *path)
{
	DIR *d = opendir(path);
	struct dirent *e;

	while (d && (e = readdir(d)))
		if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
			unlinkat(dirfd(d), e->d_name, 0);
	if (d)
		closedir(d);
	return rmdir(path);
}

/* Puts the finished directory in its place; with --force what was there is exchanged, then removed. */
static int install(struct maker *m, const char *out)
{
	if (renameat2(AT_FDCWD, m->tmp, AT_FDCWD, out, RENAME_NOREPLACE) == 0)
		return 0;
	if (errno == EEXIST && m->o->force) {
		if (renameat2(AT_FDCWD, m->tmp, AT_FDCWD, out, RENAME_EXCHANGE) == 0) {
			if (remove_dir(m->tmp) < 0)
				return err_errno(m->err, DS_IO, "cannot remove the old '%s', now '%s'", out, m->tmp);
			return 0;
		}
	} else if (errno == EEXIST) {
		return err_set(m->err, DS_USAGE, "cannot make '%s': it exists; --force replaces it", out);
	} else if (errno == EINVAL && rename(m->tmp, out) == 0) {
		return 0; /* a file system without flags; rename does not replace a directory that is not empty */
	}
	return err_errno(m->err, DS_IO, "cannot rename '%s' to '%s'", m->tmp, out);
}

static bool ends_with(const char *s, const char *end)
{
	size_t n = strlen(s), k = strlen(end);

	return n > k && !strcmp(s + n - k, end);
}

/* --force replaces a directory that has nothing but what a model has, never somebody's work. */
static int check_old(const struct maker *m, const char *out)
{
	struct stat st;
	struct dirent *e;
	DIR *d;
	int rc = 0;

	if (lstat(out, &st) < 0)
		return 0;
	if (!m->o->force)
		return err_set(m->err, DS_USAGE, "cannot make '%s': it exists; --force replaces it", out);
	if (!S_ISDIR(st.st_mode))
		return err_set(m->err, DS_USAGE, "cannot make '%s': it is there and no directory", out);
	d = opendir(out);
	if (!d)
		return err_errno(m->err, DS_IO, "cannot read '%s'", out);
	while (!rc && (e = readdir(d)))
		if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..") && !ends_with(e->d_name, ".json") &&
		    !ends_with(e->d_name, ".safetensors"))
			rc = err_set(m->err, DS_USAGE, "cannot replace '%s': '%s' in it is no part of a model", out,
				e->d_name);
	closedir(d);
	return rc;
}

static int make_tmp(struct maker *m, const char *out)
{
	mode_t mask;
	int old = check_old(m, out);

	if (old)
		return old;
	if (asprintf(&m->tmp, "%s.tmp-XXXXXX", out) < 0) {
		m->tmp = NULL;
		return err_nomem(m->err, strlen(out) + 12, "a path");
	}
	if (!mkdtemp(m->tmp)) {
		int rc = err_errno(m->err, DS_IO, "cannot create '%s'", m->tmp);

		free(m->tmp);
		m->tmp = NULL;
		return rc;
	}
	mask = umask(0);
	umask(mask);
	chmod(m->tmp, 0777 & ~mask);
	return 0;
}

static int make_dir(struct maker *m)
{
	char *out = strdup(m->o->out);
	int rc;

	if (!out)
		return err_nomem(m->err, strlen(m->o->out), "a path");
	for (size_t n = strlen(out); n > 1 && out[n - 1] == '/'; n--)
		out[n - 1] = '\0';
	rc = make_tmp(m, out);
	if (!rc)
		rc = write_all(m);
	if (!rc)
		rc = install(m, out);
	if (rc && m->tmp)
		remove_dir(m->tmp);
	free(m->tmp);
	free(out);
	return rc;
}

int make_model(const struct make_options *o, struct make_plan *plan, struct ds_err *err)
{
	struct maker m = { .o = o, .plan = plan, .err = err };
	int rc;

	memset(plan, 0, sizeof *plan);
	rc = plan_all(&m);
	if (!rc && !o->dry_run)
		rc = make_dir(&m);
	free(m.items);
	buf_free(&m.config);
	return rc;
}
