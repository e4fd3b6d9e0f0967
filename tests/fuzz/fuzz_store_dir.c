/*
 * A store's directory in any state: sound files, of which the input changes, cuts, mixes or removes some, or one that
 * is the input.  Opening it, listing, getting everything, putting, verifying and tidying up must end, and what is given
 * must be what was put: each item's content follows from its key.
 *
 * Where the input asks for checksums to be made right again, what is said in a frame may be anything, and is only read.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/dir.h"
#include "tests/fuzz/must.h"
#include "tests/fuzz/repair.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { ITEMS = 14, GONE = 5 /* was deleted */, FRESH = ITEMS, FILES = 16, FILE_MAX = 1 << 16, EDIT = 5, NAME = 80 };

static const size_t sizes[ITEMS + 1] = { 0, 1, 63, 64, 65, 300, 128, 2000, 4096, 700, 64, 1000, 5, 640, 77 };

struct file { char name[NAME]; uint8_t *p; size_t n; bool there; };

static char root[64], run[80];
static struct file sound[FILES], now[FILES]; /* now[i].p: [FILE_MAX] */
static size_t files;

static struct store_key key_of(size_t i)
{
	struct store_key k;

	for (size_t b = 0; b < sizeof(k.b); b++)
		k.b[b] = (uint8_t)((i + 1) * 37 + b * 11);
	return k;
}

static uint8_t byte_of(size_t i, size_t at)
{
	return (uint8_t)(at % 7 == 0 ? i * 13 : i + at / 7);
}

static void fill(size_t i, uint8_t *p)
{
	for (size_t at = 0; at < sizes[i]; at++)
		p[at] = byte_of(i, at);
}

static bool right(size_t i, const uint8_t *p, size_t n)
{
	bool same = n == sizes[i];

	for (size_t at = 0; at < n && same; at++)
		same = p[at] == byte_of(i, at);
	return same;
}

/* ---- the sound directory ---- */

static void put(struct store_session *ss, size_t i)
{
	uint8_t p[FILE_MAX / 8];
	const struct iovec iov = { p, sizes[i] };
	const struct store_put q = { .key = key_of(i), .iov = &iov, .iovs = 1, .element = i % 2 ? 2 : 0,
		.ttl_ns = i == 3 ? (uint64_t)1 << 60 : 0 };
	enum store_put_result how;
	struct ds_err err;

	fill(i, p);
	must(store_put(ss, &q, &how, &err) == 0 && how == STORE_STORED);
}

static void write_part(const char *addr, size_t from, size_t to, bool zstd)
{
	const struct store_options o = { .zstd = zstd };
	struct store_key gone = key_of(GONE);
	struct store_session *ss;
	struct ds_err err;
	struct store *s;
	bool was;

	must(store_open(&s, addr, &o, &err) == 0);
	must(store_begin(&ss, s, &err) == 0);
	for (size_t i = from; i < to; i++)
		put(ss, i);
	if (to == ITEMS)
		must(store_del(ss, &gone, &was, &err) == 0 && was);
	store_end(ss);
	store_close(s);
}

static void read_sound(const char *dir)
{
	struct dirent **names;
	int n = scandir(dir, &names, NULL, alphasort);

	must(n > 0);
	for (int i = 0; i < n; i++) {
		struct file *f = &sound[files];
		char path[400];
		struct stat st;
		int fd;

		snprintf(path, sizeof(path), "%s/%s", dir, names[i]->d_name);
		must(stat(path, &st) == 0);
		if (S_ISREG(st.st_mode)) {
			must(files < FILES && st.st_size < FILE_MAX && strlen(names[i]->d_name) < NAME);
			strcpy(f->name, names[i]->d_name);
			f->n = (size_t)st.st_size;
			f->p = malloc(f->n + 1);
			now[files].p = malloc(FILE_MAX);
			fd = open(path, O_RDONLY);
			must(f->p && now[files].p && fd >= 0 && read(fd, f->p, f->n) == st.st_size);
			close(fd);
			files++;
		}
		free(names[i]);
	}
	free(names);
}

static void remove_all(const char *dir)
{
	DIR *d = opendir(dir);
	struct dirent *e;

	while (d && (e = readdir(d)))
		unlinkat(dirfd(d), e->d_name, 0);
	if (d)
		closedir(d);
	rmdir(dir);
}

static void remove_root(void)
{
	remove_all(run);
	rmdir(root);
}

static void make_sound(void)
{
	char addr[100];

	snprintf(root, sizeof(root), "%s/fuzz-store-XXXXXX", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
	must(mkdtemp(root) != NULL);
	snprintf(run, sizeof(run), "%s/run", root);
	atexit(remove_root);
	snprintf(addr, sizeof(addr), "dir:%s", run);
	write_part(addr, 0, 6, false);
	write_part(addr, 6, 10, true);
	write_part(addr, 10, ITEMS, false);
	read_sound(run);
	remove_all(run);
}

/* ---- what the input makes of it ---- */

struct input { const uint8_t *p; size_t left; };

static uint8_t take(struct input *in)
{
	if (!in->left)
		return 0;
	in->left--;
	return *in->p++;
}

static void edit(struct input *in)
{
	struct file *f = &now[take(in) % files], *other;
	uint8_t op = take(in) % 8;
	size_t at = (size_t)take(in) << 8 | take(in), n;
	uint8_t value = take(in);

	at = f->n ? at % f->n : 0;
	n = f->n - at < (size_t)(value + 1) * 8 ? f->n - at : (size_t)(value + 1) * 8;
	if (op == 0 && f->n)
		f->p[at] = value;
	else if (op == 1 && f->n)
		f->p[at] ^= value;
	else if (op == 2)
		f->n = at;
	else if (op == 3)
		memset(f->p + at, 0, n);
	else if (op == 4 && f->n + n < FILE_MAX) { /* a part of it twice */
		memmove(f->p + at + n, f->p + at, f->n - at);
		f->n += n;
	} else if (op == 5) {
		memmove(f->p + at, f->p + at + n, f->n - at - n);
		f->n -= n;
	} else if (op == 6) {
		f->there = false;
	} else if (op == 7) { /* another's bytes in its place */
		other = &now[value % files];
		memmove(f->p, other->p, other->n);
		f->n = other->n;
	}
}

static bool ends(const char *name, const char *with)
{
	size_t n = strlen(name), m = strlen(with);

	return n >= m && strcmp(name + n - m, with) == 0;
}

/* True: what is given may be something else than what was put. */
static bool make_files(struct input *in)
{
	uint8_t how = take(in);
	bool repaired = how % 4 == 1, raw = how % 4 == 2;

	for (size_t i = 0; i < files; i++) {
		strcpy(now[i].name, sound[i].name);
		memcpy(now[i].p, sound[i].p, sound[i].n);
		now[i].n = sound[i].n;
		now[i].there = how < 128 || !ends(sound[i].name, ".idx");
	}
	if (raw) {
		struct file *f = &now[take(in) % files];

		f->n = in->left < FILE_MAX ? in->left : FILE_MAX;
		if (f->n)
			memcpy(f->p, in->p, f->n);
		in->left = 0;
	}
	while (in->left >= EDIT)
		edit(in);
	mkdir(run, 0700);
	for (size_t i = 0; i < files; i++) {
		char path[200];
		int fd;

		if (!now[i].there)
			continue;
		if (repaired && ends(now[i].name, ".seg"))
			repair(now[i].p, now[i].n);
		snprintf(path, sizeof(path), "%s/%s", run, now[i].name);
		fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
		must(fd >= 0 && write(fd, now[i].p, now[i].n) == (ssize_t)now[i].n);
		close(fd);
	}
	return repaired || raw;
}

/* ---- using it ---- */

struct got { uint8_t p[FILE_MAX]; size_t item, n; bool forged, done; };

static void *place(void *ctx, size_t i, const struct store_item *item)
{
	struct got *g = ctx;

	(void)i;
	g->n = item->size;
	if (item->size > sizeof(g->p))
		must(g->forged);
	return item->size > sizeof(g->p) ? NULL : g->p;
}

static bool done(void *ctx, size_t i)
{
	struct got *g = ctx;

	(void)i;
	g->done = true;
	must(g->forged || right(g->item, g->p, g->n));
	return true;
}

static bool get(struct store_session *ss, size_t item, bool forged)
{
	static struct got g;
	const struct store_sink sink = { &g, place, done };
	struct store_key k = key_of(item);
	struct ds_err err;
	size_t n;
	int rc;

	g.item = item;
	g.forged = forged;
	g.done = false;
	rc = store_get(ss, &k, 1, &sink, &n, &err);
	must(rc == 0 || (rc == err.code && err.text[0]));
	must(n == g.done);
	return n;
}

static int each(void *ctx, const struct store_item *item, const char *segment, uint64_t offset, struct ds_err *err)
{
	bool known = *(const bool *)ctx;

	(void)segment, (void)offset, (void)err;
	for (size_t i = 0; i <= ITEMS && !known; i++) {
		struct store_key k = key_of(i);

		known = store_key_equal(&k, &item->key);
	}
	must(known);
	return 0;
}

static void tell(void *ctx, const char *line)
{
	(void)ctx;
	must(line[0] && !strchr(line, '\n'));
}

/* Opens it and gets all; what was got before is got again. */
static void use(bool forged, bool fresh, bool *had)
{
	const struct store_options o = { 0 };
	struct store_session *ss;
	struct store_stat st;
	struct store *s;
	struct ds_err err;
	char addr[100];
	int rc;

	snprintf(addr, sizeof(addr), "dir:%s", run);
	rc = store_open(&s, addr, &o, &err);
	if (rc) {
		must(rc == err.code && err.text[0]);
		return;
	}
	must(store_begin(&ss, s, &err) == 0);
	for (size_t i = 0; i <= ITEMS; i++) {
		bool got = get(ss, i, forged);

		must(forged || got || !had[i]);
		had[i] = got;
	}
	if (fresh && !had[FRESH]) {
		put(ss, FRESH);
		had[FRESH] = get(ss, FRESH, false);
		must(had[FRESH]);
	}
	must(store_stat(ss, &st, &err) == 0);
	store_end(ss);
	store_close(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const struct store_options o = { 0 };
	struct input in = { data, size };
	bool had[ITEMS + 1] = { false };
	struct dir_report r;
	struct ds_err err;
	bool forged;

	if (!files)
		make_sound();
	forged = make_files(&in);
	dir_list(run, each, &forged, &err);
	dir_verify(run, tell, NULL, &r, &err);
	use(forged, true, had);
	use(forged, false, had);
	if (size % 4 == 0) {
		dir_gc(run, &o, NULL, NULL, &r, &err);
		use(forged, false, had);
	}
	remove_all(run);
	return 0;
}
