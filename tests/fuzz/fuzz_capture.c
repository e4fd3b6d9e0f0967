/*
 * What ds-frame's commands do with any bytes: two captures compared (a capture and itself are the same), sliced,
 * packed; a safetensors file unpacked.  The first byte says where the input is cut in two and what is done; most
 * inputs have the checksums of their frames made right first.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"
#include "frame/tools.h"
#include "model/pack.h"
#include "tests/fuzz/repair.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct tool_options options = { .max_frame = 1 << 20, .output = "/dev/null", .count = 3, .json = false };

struct file { int fd; char path[40]; };

static struct file make_file(const uint8_t *p, size_t n, bool mend)
{
	struct file f = { .fd = memfd_create("fuzz", MFD_CLOEXEC) };
	uint8_t *copy = malloc(n + 1);

	if (f.fd < 0 || !copy)
		abort();
	if (n)
		memcpy(copy, p, n);
	if (mend)
		repair(copy, n);
	if (write(f.fd, copy, n) != (ssize_t)n)
		abort();
	free(copy);
	snprintf(f.path, sizeof f.path, "/proc/self/fd/%d", f.fd);
	return f;
}

static void compare(const struct file *a, const struct file *b, uint8_t how)
{
	struct tool_options o = options;
	struct diff_options d = { .tol = how & 1 ? 0.5 : -1, .atol = how & 2 ? 1e-3 : -1, .common = how & 4 };
	struct ds_err err;
	int rc;

	o.json = how & 8;
	rc = tool_diff(&o, &d, a->path, a->path, &err);
	if (rc == DS_NO)
		abort(); /* different from itself */
	rc = tool_diff(&o, &d, a->path, b->path, &err);
	if (rc > DS_NO && !err.text[0])
		abort();
}

static void slice(const struct file *a, const struct file *b, uint8_t how)
{
	struct selection_text t = { .positions = how & 1 ? "1..2,4" : NULL, .layers = how & 2 ? "0..1" : NULL,
		.points = how & 4 ? "layer.*" : NULL };
	char *paths[] = { (char *)(uintptr_t)a->path, (char *)(uintptr_t)b->path };
	struct selection s;
	struct ds_err err;

	if (selection_new(&s, &t, &err))
		abort();
	tool_select(&options, &s, how & 8, a->path, &err);
	selection_free(&s);
	tool_merge(&options, paths, 2, &err);
	tool_head(&options, b->path, &err);
	tool_stat(&options, a->path, &err);
	tool_pack(&options, a->path, &err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *maps[] = { "a*=layer.*.q", "*=*" };
	struct opt_list list = { maps, 2 };
	struct unpack_options u = { .maps = &list };
	struct file a, b;
	struct ds_err err;
	size_t half;
	int out, null;
	uint8_t how;

	log_init("fuzz", 0, -2);
	if (size < 4)
		return 0;
	how = data[0];
	half = (size_t)(data[1] << 8 | data[2]) % (size - 2);
	if (how & 128)
		half = 0; /* all of it is both */
	a = make_file(data + 3, half ? half - 1 : size - 3, how & 64);
	b = make_file(data + 3 + (half ? half - 1 : 0), size - 3 - (half ? half - 1 : 0), how & 64);
	fflush(stdout);
	out = dup(STDOUT_FILENO);
	null = open("/dev/null", O_WRONLY | O_CLOEXEC);
	dup2(null, STDOUT_FILENO);
	if (how & 32) {
		list.n = how & 3 ? 2 : 0;
		tool_unpack(&options, &u, a.path, &err);
	} else if (how & 16) {
		slice(&a, &b, how);
	} else {
		compare(&a, &b, how);
	}
	fflush(stdout);
	dup2(out, STDOUT_FILENO); /* it may be where a test's results go */
	close(out);
	close(null);
	close(a.fd);
	close(b.fd);
	return 0;
}
