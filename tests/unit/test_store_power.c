/*
 * What was deleted from a store with `sync` stays so when the power is lost: of every file what was brought to disk
 * last, of the directory the names that were.  What was put, replaced, or moved before is not there again.
 *
 * The system calls that bring things to disk are this program's own, and keep copies.
 */
#include <errno.h>
#include <sys/syscall.h>

#include "tests/unit/stores.h"

static char disk[500]; /* what is on disk; "": nothing is kept */

static void copy_file(const char *from, const char *name)
{
	char command[1500];

	snprintf(command, sizeof command, "cp '%s' '%s/%.63s'", from, disk, name);
	if (system(command))
		tap_bail("cannot copy %s", from);
}

/* The path of an open file; its name within the directory. */
static const char *path_of(int fd, char to[600])
{
	char link[64];
	ssize_t n;

	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	n = readlink(link, to, 599);
	if (n <= 0)
		return NULL;
	to[n] = 0;
	return strrchr(to, '/') + 1;
}

static bool is_part(const char *name)
{
	size_t n = strlen(name);

	return n > 4 && (!strcmp(name + n - 4, ".seg") || !strcmp(name + n - 4, ".idx"));
}

int fdatasync(int fd)
{
	char path[600];
	const char *name = disk[0] ? path_of(fd, path) : NULL;
	int rc = (int)syscall(SYS_fdatasync, fd);

	if (name && is_part(name) && access(path, F_OK) == 0)
		copy_file(path, name);
	return rc;
}

/* Names that went are gone on disk once the directory is brought there. */
int fsync(int fd)
{
	char path[600], other[1200];
	struct stat st;
	DIR *d = disk[0] && !fstat(fd, &st) && S_ISDIR(st.st_mode) && path_of(fd, path) ? opendir(disk) : NULL;
	const struct dirent *e;

	while (d && (e = readdir(d))) {
		snprintf(other, sizeof other, "%s/%s", path, e->d_name);
		if (is_part(e->d_name) && access(other, F_OK))
			unlinkat(dirfd(d), e->d_name, 0);
	}
	if (d)
		closedir(d);
	return (int)syscall(SYS_fsync, fd);
}

/* All is on disk as it is now, as it happens after a while. */
static void settle(const char *path)
{
	char names[128][64], from[700];
	int n;

	snprintf(disk, sizeof disk, "%s.disk", path);
	store_rm(disk);
	mkdir(disk, 0777);
	n = store_files(path, "", names, 128);
	for (int i = 0; i < n; i++) {
		if (names[i][0] == '.')
			continue;
		snprintf(from, sizeof from, "%s/%.63s", path, names[i]);
		copy_file(from, names[i]);
	}
}

/* Whether an item is there after the power was lost now. */
static enum get_result after_power(uint64_t n, size_t size, uint64_t version)
{
	char command[1500], lost[600];
	const struct store_options o = { .segment = 64 << 10 };
	struct store_session *ss;
	enum get_result r;
	struct store *s;

	snprintf(lost, sizeof lost, "%s.lost", disk);
	store_rm(lost);
	snprintf(command, sizeof command, "cp -r '%s' '%s'", disk, lost);
	disk[0] = 0;
	if (system(command))
		tap_bail("cannot copy the disk");
	s = store_at(lost, &o);
	ss = session_of(s);
	r = has_n(ss, n) ? GET_RIGHT : GET_MISS;
	if (get_n(ss, n, size, version) != r)
		r = GET_WRONG;
	store_end(ss);
	store_close(s);
	store_rm(lost);
	return r;
}

static const struct store_options with_sync = { .segment = 64 << 10, .sync = true };

static void put(struct store_session *ss, uint64_t n, size_t size, uint64_t version)
{
	enum store_put_result r;
	struct ds_err err;

	if (put_n(ss, n, size, &(struct put_how){ .replace = version != 0, .version = version }, &r, &err))
		tap_bail("put: %s", err.text);
}

static void del(struct store_session *ss, uint64_t n)
{
	struct store_key k = key_of(n);
	struct ds_err err;
	bool was = false;

	if (store_del(ss, &k, &was, &err) || !was)
		tap_bail("delete: %s", was ? err.text : "it was not there");
}

static void end(struct store_session *ss, struct store *s, const char *path)
{
	disk[0] = 0;
	store_end(ss);
	store_close(s);
	store_rm(path);
}

/* In the segment that is being written, and in one that is complete. */
static void plain(void)
{
	const char *path = store_path("power-del");
	struct store *s = store_at(path, &with_sync);
	struct store_session *ss = session_of(s);

	for (uint64_t n = 0; n < 20; n++)
		put(ss, n, 5000, 0);
	settle(path);
	del(ss, 19);
	tap_is_int(after_power(19, 5000, 0), GET_MISS, "what was deleted is gone");
	settle(path);
	del(ss, 1);
	tap_is_int(after_power(1, 5000, 0), GET_MISS, "also from a segment that is complete");
	settle(path);
	tap_is_int(after_power(2, 5000, 0), GET_RIGHT, "what was not is there");
	end(ss, s, path);
}

static void replaced(void)
{
	const char *path = store_path("power-again");
	struct store *s = store_at(path, &with_sync);
	struct store_session *ss = session_of(s);

	put(ss, 1, 5000, 1);
	for (uint64_t n = 10; n < 30; n++)
		put(ss, n, 5000, 0);
	settle(path);
	put(ss, 1, 5000, 2);
	tap_is_int(after_power(1, 5000, 2), GET_RIGHT, "what replaced another is there");
	settle(path);
	put(ss, 1, 5000, 3);
	del(ss, 1);
	tap_is_int(after_power(1, 5000, 1), GET_MISS, "what was replaced before it was deleted does not come back");
	end(ss, s, path);
}

/* Another service, without sync, replaces what is deleted then; or it did before this one began. */
static void by_others(void)
{
	const struct store_options without = { .segment = 64 << 10 };
	char path[500];
	struct store *a, *b;
	struct store_session *sa, *sb;

	snprintf(path, sizeof path, "%s", store_path("power-two"));
	a = store_at(path, &with_sync);
	sa = session_of(a);
	b = store_at(path, &without);
	sb = session_of(b);
	put(sa, 1, 5000, 1);
	put(sa, 2, 5000, 1);
	settle(path);
	put(sb, 1, 5000, 2);
	del(sa, 1);
	tap_is_int(after_power(1, 5000, 1), GET_MISS, "nor what another service replaced");
	store_end(sa);
	store_close(a);
	settle(path);
	put(sb, 2, 5000, 2);
	a = store_at(path, &with_sync);
	sa = session_of(a);
	del(sa, 2);
	tap_is_int(after_power(2, 5000, 1), GET_MISS, "nor what it replaced before this one began");
	disk[0] = 0;
	store_end(sb);
	store_close(b);
	end(sa, a, path);
}

/* It was moved on; its old segment's name went, but not on disk. */
static void moved(void)
{
	const struct store_options without = { .segment = 64 << 10 };
	char path[500];
	struct dir_report rep;
	struct store_session *ss;
	struct store *s;
	struct ds_err err;

	snprintf(path, sizeof path, "%s", store_path("power-moved"));
	s = store_at(path, &with_sync);
	ss = session_of(s);
	for (uint64_t n = 1; n < 20; n++)
		put(ss, n, 5000, 0);
	del(ss, 2);
	settle(path);
	tap_ok(!dir_gc(path, &without, NULL, NULL, &rep, &err) && get_n(ss, 1, 5000, 0) == GET_RIGHT,
		"another process moves an item");
	del(ss, 1);
	tap_is_int(after_power(1, 5000, 0), GET_MISS, "what was moved before it was deleted does not come back");
	end(ss, s, path);
}

int main(void)
{
	plain();
	replaced();
	by_others();
	moved();
	return tap_done();
}
