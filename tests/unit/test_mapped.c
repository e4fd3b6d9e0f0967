/* Files that are cut or changed while they are mapped: each case ends a process of its own. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/leftover.h"
#include "base/log.h"
#include "base/mapped.h"
#include "base/mem.h"
#include "frame/frame.h"
#include "tests/unit/tap.h"

enum { PAGE = 4096, PAGES = 64 };

static char dir[] = "/tmp/test_mapped.XXXXXX", file[64];

struct end { int status; char said[2048]; };

/* Runs fn in a process of its own; what it says on stderr is kept. */
static struct end ends(void (*fn)(void))
{
	struct end e = { 0 };
	size_t n = 0;
	ssize_t got;
	int to[2];
	pid_t pid;

	if (pipe(to))
		tap_bail("pipe");
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		dup2(to[1], STDERR_FILENO);
		close(to[0]);
		fn();
		_exit(0);
	}
	close(to[1]);
	while ((got = read(to[0], e.said + n, sizeof e.said - 1 - n)) > 0)
		n += (size_t)got;
	close(to[0]);
	waitpid(pid, &e.status, 0);
	return e;
}

static bool exited(const struct end *e, int code)
{
	return WIFEXITED(e->status) && WEXITSTATUS(e->status) == code;
}

static void write_file(const char *path, size_t n)
{
	FILE *f = fopen(path, "w");

	for (size_t i = 0; f && i < n; i++)
		fputc((int)(i % 251), f);
	if (!f || fclose(f))
		tap_bail("cannot write %s", path);
}

struct map { volatile const char *p; struct mapped *known; };

/* The file, made anew, mapped with `more` bytes beyond its end. */
static struct map map_file(size_t more, bool known)
{
	struct ds_err err;
	struct map m = { NULL, NULL };
	struct stat st;
	int fd;

	write_file(file, PAGE * PAGES);
	fd = open(file, O_RDONLY);
	fstat(fd, &st);
	m.p = mmap(NULL, PAGE * PAGES + more, PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (known && mapped_add(&m.known, (const void *)(uintptr_t)m.p, PAGE * PAGES + more, file, &st, &err))
		tap_bail("%s", err.text);
	return m;
}

static void use_cut(void)
{
	struct map m = map_file(0, true);
	char sum = m.p[PAGE * (PAGES - 1)];

	if (truncate(file, PAGE * 2))
		_exit(99);
	sum = (char)(sum + m.p[PAGE]); /* is there */
	_exit(m.p[PAGE * (PAGES - 1)] == sum ? 98 : 97);
}

static void cut_text(void)
{
	log_init("ds-x", 0, 0);
	use_cut();
}

static void cut_json(void)
{
	log_init("ds-x", 1, 0);
	use_cut();
}

static void use_failing(void)
{
	struct map m;

	log_init("ds-x", 0, 0);
	m = map_file(PAGE * 8, true);
	_exit(m.p[PAGE * (PAGES + 4)] ? 98 : 97); /* as far as one can see, the file is as it was */
}

static void use_unknown(void)
{
	struct map other = map_file(0, true), m = map_file(0, false);

	mapped_remove(other.known);
	signal(SIGALRM, SIG_DFL);
	alarm(20); /* a handler that only tries again would stay for ever */
	if (truncate(file, PAGE * 2))
		_exit(99);
	_exit(m.p[PAGE * (PAGES - 1)] ? 98 : 97);
}

static void get_sent(void)
{
	map_file(0, true);
	kill(getpid(), SIGBUS);
	_exit(97);
}

static void leave_things(void)
{
	static char one[80], many[80], inside[200];

	snprintf(one, sizeof one, "%s/one.tmp", dir);
	snprintf(many, sizeof many, "%s/many.tmp", dir);
	write_file(one, 10);
	mkdir(many, 0777);
	for (int i = 0; i < 500; i++) {
		snprintf(inside, sizeof inside, "%s/a-name-that-takes-some-room-%d", many, i);
		write_file(inside, 1);
	}
	leftover_add(one);
	leftover_add(many);
	cut_text();
}

static void *remove_leftovers(void *arg)
{
	leftover_remove();
	return arg;
}

/* The fault: a name that is given back while a handler, in another thread, still removes what it names. */
static void test_name_goes(void)
{
	char many[80], inside[200], first[200];
	pthread_t t;

	snprintf(many, sizeof many, "%s/many.tmp", dir);
	mkdir(many, 0777);
	for (int i = 0; i < 3000; i++) {
		snprintf(inside, sizeof inside, "%s/%d", many, i);
		write_file(inside, 1);
	}
	leftover_add(many);
	pthread_create(&t, NULL, remove_leftovers, NULL);
	do
		snprintf(first, sizeof first, "%s/%d", many, rand() % 3000);
	while (access(first, F_OK) == 0);
	leftover_done(many);
	memset(many, 'x', sizeof many - 1);
	pthread_join(t, NULL);
	tap_ok(rmdir(dir) == 0 && mkdir(dir, 0700) == 0, "a name goes while what it names is removed");
}

static struct map shared;
static pthread_barrier_t all;

static void *use_shared(void *arg)
{
	size_t page = (size_t)(uintptr_t)arg;

	pthread_barrier_wait(&all);
	return shared.p[PAGE * page] ? arg : NULL;
}

static void use_by_threads(void)
{
	pthread_t t[16];

	log_init("ds-x", 0, 0);
	shared = map_file(0, true);
	pthread_barrier_init(&all, NULL, ARRAY_LEN(t));
	if (truncate(file, 0))
		_exit(99);
	for (size_t i = 0; i < ARRAY_LEN(t); i++)
		pthread_create(&t[i], NULL, use_shared, (void *)(uintptr_t)(i * 3));
	for (size_t i = 0; i < ARRAY_LEN(t); i++)
		pthread_join(t[i], NULL);
	_exit(97);
}

/*
 * A list so long that a handler is on its way through it when it is interrupted, for so long that all of the list can
 * be given back and its memory written over.
 */
enum { LONG = 20000, SOME = 224 };

static struct mapped *others[LONG];
static _Atomic bool faulting;

static void interrupt(int sig)
{
	(void)sig;
	usleep(100000);
}

static void *use_interrupted(void *arg)
{
	atomic_store(&faulting, true);
	return shared.p[0] ? arg : NULL;
}

static void give_all_back(void)
{
	for (size_t i = LONG; i-- > 0;)
		mapped_remove(others[i]);
	for (size_t i = 0; i < 2 * LONG; i++) {
		void *p = malloc(SOME);

		if (p)
			memset(p, 0xff, SOME);
	}
}

static void use_while_others_go(void)
{
	struct stat st = { 0 };
	struct ds_err err;
	pthread_t t;

	log_init("ds-x", 0, 0);
	signal(SIGUSR1, interrupt);
	shared = map_file(0, true);
	for (size_t i = 0; i < LONG; i++)
		mapped_add(&others[i], &err, 0, file, &st, &err);
	if (truncate(file, 0))
		_exit(99);
	pthread_create(&t, NULL, use_interrupted, NULL);
	while (!atomic_load(&faulting))
		;
	for (volatile int i = 0; i < 20000; i++)
		;
	pthread_kill(t, SIGUSR1);
	give_all_back();
	pthread_join(t, NULL);
	_exit(97);
}

/* The fault: the handler reads the entry of a file that another thread gives back at that moment. */
static void test_others_go(void)
{
	size_t good = 0, runs = 5;
	struct end e;

	for (size_t i = 0; i < runs; i++) {
		e = ends(use_while_others_go);
		good += exited(&e, DS_DATA) && strstr(e.said, "cut or changed");
	}
	tap_ok(good == runs, "other files go meanwhile: %zu of %zu ends are as they should be; %x %s", good, runs,
		e.status, e.said);
}

static void test_ends(void)
{
	char want[300];
	struct end e = ends(cut_text);

	snprintf(want, sizeof want, "ds-x: cannot read '%s': it was cut or changed while in use; copy the whole file "
		"there and start again\n", file);
	tap_ok(exited(&e, DS_DATA), "cut: status %x", e.status);
	tap_ok(!strcmp(e.said, want), "one line: %s", e.said);
	e = ends(use_by_threads);
	tap_ok(exited(&e, DS_DATA) && !strcmp(e.said, want), "many threads, one line");
	e = ends(use_failing);
	tap_ok(exited(&e, DS_IO) && strstr(e.said, file) && strstr(e.said, "disk"), "not cut, but no data: %s", e.said);
	e = ends(leave_things);
	tap_ok(exited(&e, DS_DATA) && !strcmp(e.said, want), "with something half made");
	tap_ok(unlink(file) == 0 && rmdir(dir) == 0 && mkdir(dir, 0700) == 0, "which is gone");
	test_name_goes();
}

static void test_json(void)
{
	struct end e = ends(cut_json);
	char want[200], when[40];
	long long ago = 0;
	struct tm tm = { 0 };
	char *end;

	tap_ok(exited(&e, DS_DATA) && strlen(e.said) > 60 && !strcmp(e.said + strlen(e.said) - 2, "}\n"), "%s", e.said);
	snprintf(want, sizeof want, "\"level\":\"error\",\"program\":\"ds-x\",\"pid\":");
	tap_ok(!strncmp(e.said, "{\"time\":\"", 9) && strstr(e.said, want) && strstr(e.said, file), "a record");
	snprintf(when, sizeof when, "%.27s", e.said + 9);
	end = strptime(when, "%Y-%m-%dT%H:%M:%S", &tm);
	ago = (long long)(time(NULL) - timegm(&tm));
	tap_ok(end && *end == '.' && when[26] == 'Z' && ago >= 0 && ago < 30, "of now: %s", when);
}

static void test_others(void)
{
	struct end e = ends(use_unknown);
	bool sanitized = WIFEXITED(e.status) && WEXITSTATUS(e.status) == 99; /* its handler was there before */

	tap_ok((WIFSIGNALED(e.status) && WTERMSIG(e.status) == SIGBUS) || (sanitized && strstr(e.said, "ERROR")),
		"a file that is not known: status %x", e.status);
	e = ends(get_sent);
	sanitized = WIFEXITED(e.status) && WEXITSTATUS(e.status) == 99;
	tap_ok((WIFSIGNALED(e.status) && WTERMSIG(e.status) == SIGBUS) || (sanitized && strstr(e.said, "ERROR")),
		"a signal that was sent: status %x", e.status);
}

static void test_words(void)
{
	struct map m = map_file(0, true);
	struct ds_err err = { 0 };
	struct timespec times[2] = { { 0, UTIME_OMIT }, { 1000000000, 5 } };
	const void *p = (const void *)(uintptr_t)(m.p + PAGE * 3);
	char other[80];

	tap_ok(mapped_check(m.known, false, &err) == 0, "nothing happened");
	utimensat(AT_FDCWD, file, times, 0);
	tap_ok(mapped_check(m.known, false, &err) == DS_DATA && strstr(err.text, file), "touched: %s", err.text);
	tap_ok(mapped_check(m.known, true, &err) == 0 && mapped_check(m.known, false, &err) == 0, "accepted");
	if (truncate(file, PAGE))
		tap_bail("truncate");
	tap_ok(mapped_check(m.known, true, &err) == DS_DATA, "cut: not accepted");
	tap_ok(mapped_lost(p, PAGE, &err) == DS_DATA && strstr(err.text, "cut"), "in words: %s", err.text);
	tap_ok(mapped_lost((const char *)p - 10 * PAGE, 10, &err) == 0 && mapped_lost(&err, sizeof err, &err) == 0,
		"other memory is no such file's");
	snprintf(other, sizeof other, "%s/other", dir);
	write_file(other, 100);
	if (rename(other, file))
		tap_bail("rename");
	tap_ok(mapped_check(m.known, false, &err) == 0, "another file of its name is no change");
	mapped_remove(m.known);
	mapped_remove(NULL);
	tap_ok(mapped_lost(p, PAGE, &err) == 0, "no longer known");
}

/* The fault: what the kernel cannot read for a frame is said to be a fault of where the frame goes. */
static void test_frame(void)
{
	struct map m = map_file(0, true);
	struct iovec iov = { (void *)(uintptr_t)m.p, PAGE * PAGES };
	struct meta_builder *meta = meta_new();
	struct frame_writer *w;
	struct ds_err err = { 0 };
	char other[80];
	int fd, rc;

	snprintf(other, sizeof other, "%s/frames", dir);
	fd = open(other, O_WRONLY | O_CREAT, 0600);
	if (fd < 0 || !meta || frame_writer_new(&w, fd, other, &err) || truncate(file, PAGE * 3))
		tap_bail("cannot write '%s'", other);
	meta_reset(meta);
	rc = frame_write(w, FRAME_TENSOR, 0, 1, meta, &iov, 1, false, &err);
	tap_ok(rc == DS_DATA && strstr(err.text, file) && strstr(err.text, "cut"), "a frame of it: %s", err.text);
	frame_writer_free(w);
	meta_free(meta);
	close(fd);
	unlink(other);
	mapped_remove(m.known);
}

int main(void)
{
	if (!mkdtemp(dir))
		tap_bail("mkdtemp");
	snprintf(file, sizeof file, "%s/file", dir);
	test_ends();
	test_others_go();
	test_json();
	test_others();
	test_words();
	test_frame();
	unlink(file);
	rmdir(dir);
	return tap_done();
}
