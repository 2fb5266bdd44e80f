# fplab: one environment in .venv, and the commands that use it. `make` lists them.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
VENV ?= .venv
BIN := $(VENV)/bin
# Options for installing torch and torchvision, which must fit, such as --index-url for another build of both.
TORCH_FLAGS ?=
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help install run figures gallery test lint test-all browser emulators lab pages bench bench-first prove withstand cpus nightly clean

help: ## this list ## 本列表
	@grep -hE '^[a-z-]+:.* ## ' $(MAKEFILE_LIST) | awk -F ' ## ' '{sub(/:.*/, "", $$1); \
		printf "make %-11s %s\n", $$1, "$(FPLAB_LANG)" ~ /^zh/ ? $$3 : $$2}'

$(VENV)/.installed: pyproject.toml constraints.txt hatch_build.py
	@test -n "$(PYTHON)" || { echo "fplab needs Python 3.11 or later; name one with: make PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "Building $(VENV) with $$($(PYTHON) --version) (a few minutes, once)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) $(TORCH_FLAGS) torch torchvision
	$(PIP) -e '.[lab,test]'
	@touch $@

$(VENV)/.ready: $(VENV)/.installed $(wildcard fplab/words/*.po)
	@$(BIN)/python -m fplab.words >/dev/null
	@touch $@

install: $(VENV)/.ready ## build .venv only ## 只建立 .venv

run: $(VENV)/.ready ## every experiment at its quick size: what each finds, and runs/quick/report.html ## 以快速规模运行全部实验：各自的发现，以及 runs/quick/report.html
	@$(BIN)/python -m fplab run

figures: $(VENV)/.ready ## every experiment at its full size, into runs/full ## 以完整规模运行全部实验，写入 runs/full
	@$(BIN)/python -m fplab figures --full

gallery: $(VENV)/.ready ## draw figures/ anew, the pictures that are kept; in the pinned environment ## 重画 figures/ 中保留的图；在固定版本的环境中
	@FPLAB_LANG=en $(BIN)/python -m fplab figures --out figures --pictures svg zh.svg
	@FPLAB_LANG=en $(BIN)/python -m fplab figures --full recipes fp8_training --out figures --pictures svg zh.svg
	@$(BIN)/python -m tests.screenshots

lint: $(VENV)/.ready ## ruff and mypy ## ruff 与 mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test: $(VENV)/.ready ## ruff, mypy and the tests without the parts that test-all has besides ## ruff、mypy 和测试（不含 test-all 另有的部分）
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(BIN)/mypy & types=$$!; \
	$(PYTEST) --short; tested=$$?; \
	wait $$types || { echo "mypy finds errors: make lint" >&2; exit 1; }; exit $$tested

test-all: $(VENV)/.ready ## the whole test suite; PART=notebooks, browser, ranks ... runs one part ## 全部测试；PART=notebooks、browser、ranks 等只运行一个部分
	@$(PYTEST) $(PART:%=--part %)

browser: ## Chromium, a Chinese font and bubblewrap, which tests use, from Debian's or Ubuntu's packages ## 从 Debian 或 Ubuntu 的软件包安装测试所用的 Chromium、中文字体与 bubblewrap
	apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y chromium fonts-noto-cjk bubblewrap \
		>/dev/null

# FPCR.EBF is emulated by QEMU from 9.2 on, which Debian 12 has among its backports, where its packages come from; rustc may
# be rustup's.
FROM := apt-get indextargets --format '$$(REPO_URI)' 'Release: bookworm' 'Created-By: Packages' | head -n 1
BACKPORTS = deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $$($(FROM)) bookworm-backports main
CROSS := $(foreach cpu,arm64 riscv64,libc6-dev-$(cpu)-cross) gcc-aarch64-linux-gnu gcc-riscv64-linux-gnu
emulators: ## QEMU, cross compilers, Verilator and Rust, which tests use, from Debian's or Ubuntu's packages ## 从 Debian 或 Ubuntu 的软件包安装测试所用的 QEMU、交叉编译器、Verilator 与 Rust
	@list=$$(mktemp) && trap 'rm -f '$$list EXIT && qemu=qemu-user && . /etc/os-release && \
	if [ -f /etc/apt/sources.list ]; then cat /etc/apt/sources.list >$$list; fi && \
	if [ "$$VERSION_CODENAME" = bookworm ]; then qemu=qemu-user/bookworm-backports; echo "$(BACKPORTS)" >>$$list; fi && \
	apt="apt-get -qq -o Dir::Etc::sourcelist=$$list" && $$apt update && DEBIAN_FRONTEND=noninteractive \
		$$apt install -y --no-install-recommends $(CROSS) $$qemu g++ make verilator \
		$$(command -v rustc >/dev/null || echo rustc) >/dev/null

lab: $(VENV)/.ready ## the course in JupyterLab, copied into fplab-course ## 在 JupyterLab 中打开课程（复制到 fplab-course）
	@$(BIN)/python -m fplab lab

pages: $(VENV)/.ready ## the course, a cookbook and a reference as one site that is read offline, into pages ## 课程、实用手册与参考合成的网站，可离线阅读，写入 pages
	@$(BIN)/python -m fplab pages

bench: $(VENV)/.ready ## speed, as ratios measured in one run ## 速度，以同一次运行中的比值表示
	@$(BIN)/python -m benchmarks

bench-first: $(VENV)/.ready ## what first calls take where no kernel is compiled yet ## 尚无编译好的核函数时，首次调用所需的时间
	@$(BIN)/python -m benchmarks first

prove: $(VENV)/.ready ## the exhaustive proofs (an hour or more on two cores, resumable) ## 穷举证明（两个核心需一小时以上，中断后可继续）
	@$(BIN)/python -m tests.prove

withstand: $(VENV)/.ready ## kills, damaged files, races and misuse, from a seed (minutes) ## 强行终止、损坏的文件、竞争与误用，由种子决定（数分钟）
	@$(BIN)/python -m tests.withstand

cpus: $(VENV)/.ready ## what a CPU's vector units could change, tested with three other CPUs imitated (minutes) ## 模拟另外三种 CPU，测试向量单元可能改变的结果（数分钟）
	@$(BIN)/python -m tests.cpus -n 2 --dist load

# The oldest and the newest torch of pyproject.toml, each in an environment of its own under .nightly; TORCH_FLAGS chooses
# the build. torch brings versions of its own of what else is CUDA's, so the constraints are taken without them.
TORCHES ?= 2.10.0 2.15.0
NIGHTLY := tests/test_nn_*.py tests/test_watch*.py tests/test_int8_layers.py tests/test_quantised_models.py \
	tests/test_fake_quantize.py tests/test_optimizer*.py tests/test_parallel*.py tests/test_distributed.py \
	tests/test_model_families.py tests/test_families_answered.py tests/test_one_file.py tests/test_recorder.py
.PHONY: $(TORCHES:%=nightly-%) nightly-recorder
.nightly/%/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .nightly/$*
	grep -vE '^(torch|nvidia)' constraints.txt >.nightly/$*/constraints.txt
	.nightly/$*/bin/python -m pip install -q -c .nightly/$*/constraints.txt $(TORCH_FLAGS) torch==$* torchvision
	.nightly/$*/bin/python -m pip install -q -c .nightly/$*/constraints.txt -e '.[lab,test]'
	.nightly/$*/bin/python -m fplab.words >/dev/null
	@touch $@

$(TORCHES:%=nightly-%): nightly-%: .nightly/%/.ready
	.nightly/$*/bin/python -m pytest -p no:cacheprovider $(NIGHTLY)
	.nightly/$*/bin/python -m tests.forecast_runs

# The recorder as one file takes an older torch than the package does: written, run on the CPU as a stand-in, verified.
RECORDER_TORCH ?= 2.4.1
.nightly/recorder/.ready: constraints.txt
	$(PYTHON) -m venv .nightly/recorder
	grep -E '^(numba|numpy|tqdm)=' constraints.txt >.nightly/recorder/constraints.txt
	.nightly/recorder/bin/python -m pip install -q -c .nightly/recorder/constraints.txt $(TORCH_FLAGS) \
		torch==$(RECORDER_TORCH) numba numpy tqdm
	@touch $@

nightly-recorder: .nightly/recorder/.ready
	.nightly/recorder/bin/python -m fplab record --one-file .nightly/fplab_record.py
	cd .nightly && recorder/bin/python fplab_record.py --device cpu --out record.zip
	.nightly/recorder/bin/python -m fplab verify .nightly/record.zip

nightly: $(TORCHES:%=nightly-%) nightly-recorder ## the tests of torch's part on the oldest and the newest torch supported ## 在所支持的最旧与最新的 torch 上运行与 torch 有关的测试

clean: ## remove the environment and everything generated ## 删除环境与一切生成的文件
	rm -rf $(VENV) .nightly .prove .pytest_cache .mypy_cache .ruff_cache pages runs figures/*.png figures/*.dark.svg
