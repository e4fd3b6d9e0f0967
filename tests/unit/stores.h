/* Stores in directories of their own, for tests: items whose bytes follow from their number. */
#ifndef DS_TESTS_STORES_H
#define DS_TESTS_STORES_H

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/random.h"
#include "frame/hello.h"
#include "store/dir.h"
#include "store/store_impl.h"
#include "tests/unit/tap.h"

TAP_USED static void store_rm(const char *path)
{
	DIR *d = opendir(path);
	struct dirent *e;

	while (d && (e = readdir(d)))
		if (e->d_name[0] != '.')
			unlinkat(dirfd(d), e->d_name, 0);
	if (d)
		closedir(d);
	rmdir(path);
}

/* A directory that is not there yet, under the build directory. */
TAP_USED static const char *store_path(const char *name)
{
	static char path[2][500];
	static int turn;
	char *p = path[turn ^= 1];

	snprintf(p, 500, "%s/test-stores", tap_build());
	mkdir(p, 0777);
	snprintf(p, 500, "%s/test-stores/%s.%d", tap_build(), name, (int)getpid());
	store_rm(p);
	return p;
}

TAP_USED static struct store *store_at(const char *path, const struct store_options *o)
{
	struct store *s;
	struct ds_err err;
	char addr[600];

	snprintf(addr, sizeof addr, "dir:%s", path);
	if (store_open(&s, addr, o, &err))
		tap_bail("cannot open %s: %s", addr, err.text);
	return s;
}

TAP_USED static struct store_session *session_of(struct store *s)
{
	struct store_session *ss;
	struct ds_err err;

	if (store_begin(&ss, s, &err))
		tap_bail("no session: %s", err.text);
	return ss;
}

TAP_USED static struct store_key key_of(uint64_t n)
{
	struct store_key k;
	uint64_t a = random_bits(1, n), b = random_bits(2, n);

	memcpy(k.b, &a, 8);
	memcpy(k.b + 8, &b, 8);
	return k;
}

/* Byte i of item n, version v. */
TAP_USED static void fill_item(uint8_t *p, size_t size, uint64_t n, uint64_t v)
{
	uint64_t seed = random_bits(n + 10, v);

	for (size_t i = 0; i < size; i += 8) {
		uint64_t w = (seed + i) * 0x9e3779b97f4a7c15u;

		w ^= w >> 29;
		memcpy(p + i, &w, size - i < 8 ? size - i : 8);
	}
}

struct put_how {
	bool sync, replace, exact;
	uint64_t ttl_ns, version;
	unsigned element;
	const struct meta_builder *meta;
};

TAP_USED static int put_n(struct store_session *ss, uint64_t n, size_t size, const struct put_how *how,
	enum store_put_result *r, struct ds_err *err)
{
	struct put_how none = { 0 };
	uint8_t *p = malloc(size + 8);
	struct iovec iov[2] = { { p, size / 3 }, { p + size / 3, size - size / 3 } };
	struct store_put put = { .key = key_of(n), .iov = iov, .iovs = 2 };
	int rc;

	if (!how)
		how = &none;
	fill_item(p, size, n, how->version);
	put.sync = how->sync;
	put.replace = how->replace;
	put.exact = how->exact;
	put.ttl_ns = how->ttl_ns;
	put.element = how->element;
	put.meta = how->meta;
	rc = store_put(ss, &put, r, err);
	free(p);
	return rc;
}

/* Whether item n is there, and right in every byte; what is wrong is GET_WRONG. */
enum get_result { GET_MISS, GET_RIGHT, GET_WRONG, GET_ERROR };

struct one { uint8_t *p; size_t size; };
TAP_USED static void *one_place(void *ctx, size_t i, const struct store_item *item)
{
	struct one *o = ctx;

	(void)i;
	o->size = (size_t)item->size;
	free(o->p);
	o->p = malloc(o->size + 8);
	return o->p;
}
TAP_USED static bool one_done(void *ctx, size_t i)
{
	(void)ctx, (void)i;
	return true;
}

TAP_USED static enum get_result get_n(struct store_session *ss, uint64_t n, size_t size, uint64_t version)
{
	struct one o = { 0 };
	struct store_sink sink = { &o, one_place, one_done };
	struct store_key k = key_of(n);
	enum get_result r = GET_MISS;
	struct ds_err err;
	size_t got;

	if (store_get(ss, &k, 1, &sink, &got, &err)) {
		tap_diag("get %llu: %s", (unsigned long long)n, err.text);
		r = GET_ERROR;
	} else if (got) {
		uint8_t *want = malloc(size + 8);

		fill_item(want, size, n, version);
		r = o.size == size && memcmp(o.p, want, size) == 0 ? GET_RIGHT : GET_WRONG;
		free(want);
	}
	free(o.p);
	return r;
}

TAP_USED static bool has_n(struct store_session *ss, uint64_t n)
{
	struct store_key k = key_of(n);
	struct ds_err err;
	size_t prefix;

	return !store_has(ss, &k, 1, NULL, &prefix, &err) && prefix == 1;
}

TAP_USED static struct store_stat stat_of(struct store_session *ss)
{
	struct store_stat st;
	struct ds_err err;

	if (store_stat(ss, &st, &err))
		tap_bail("stat: %s", err.text);
	return st;
}

/* Names of files that end so, joined by spaces; how many. */
TAP_USED static int store_files(const char *path, const char *suffix, char (*names)[64], int max)
{
	DIR *d = opendir(path);
	struct dirent *e;
	int n = 0;

	while (d && (e = readdir(d))) {
		size_t len = strlen(e->d_name), m = strlen(suffix);

		if (len <= m || strcmp(e->d_name + len - m, suffix) != 0)
			continue;
		if (names && n < max)
			snprintf(names[n], 64, "%.63s", e->d_name);
		n++;
	}
	if (d)
		closedir(d);
	return n;
}

/* All of a store to a file; the file, to be closed. */
TAP_USED static int exported(const char *path, const char *file, struct dir_copied *c, struct ds_err *err)
{
	int fd = open(file, O_RDWR | O_CREAT | O_TRUNC, 0666);
	const struct hello h = { .minor = 1, .program = "test", .version = "1", .role = "store" };
	struct meta_builder *b = meta_new();
	struct frame_writer *w;

	if (fd < 0 || !b || frame_writer_new(&w, fd, file, err))
		tap_bail("cannot write %s", file);
	hello_put(b, &h);
	if (frame_write(w, FRAME_HELLO, 0, 0, b, NULL, 0, false, err) || dir_export(path, w, c, err) ||
		frame_write_end(w, err))
		c->items = 0;
	frame_writer_free(w);
	meta_free(b);
	lseek(fd, 0, SEEK_SET);
	return fd;
}

#endif
