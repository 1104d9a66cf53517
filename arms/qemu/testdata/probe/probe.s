# The guest that an accelerator is tried with: a firmware of one page that goes from
# real mode to long mode with paging, computes there, and ends QEMU through its debug
# exit with what it computed. Where a processor does not virtualise, that hangs.
# probe.bin is made of it: as --64, ld -Ttext 0, objcopy -O binary.
	.set base, 0xfffff000           # where the page lies: the last below 4 GiB
	.text
	.code16
start:
	cli
	lgdtl %cs:(table - start + 0xf000)
	movl %cr0, %eax
	orl $1, %eax                    # protection
	movl %eax, %cr0
	ljmpl $8, $(base + protected - start)

	.code32
protected:
	movw $16, %ax
	movw %ax, %ds
	movw %ax, %es
	movw %ax, %ss
	movl $0x1000, %edi              # page tables at 4 KiB, zeroed
	xorl %eax, %eax
	movl $0x1000, %ecx
	rep stosl
	movl $0x2003, 0x1000            # the first 512 GiB
	movl $0x3003, 0x2000            # the first GiB
	movl $0x4003, 0x2018            # the fourth
	movl $0x83, 0x3000              # the first 2 MiB
	movl $0xffe00083, 0x4ff8        # the last 2 MiB below 4 GiB
	movl %cr4, %eax
	orl $0x20, %eax                 # PAE
	movl %eax, %cr4
	movl $0x1000, %eax
	movl %eax, %cr3
	movl $0xc0000080, %ecx
	rdmsr
	orl $0x100, %eax                # EFER.LME
	wrmsr
	movl %cr0, %eax
	orl $0x80000000, %eax           # paging
	movl %eax, %cr0
	ljmpl $24, $(base + long - start)

	.code64
long:
	movq $0x90000, %rsp          
	xorl %ebx, %ebx
	movl $1000, %ecx
1:	pushq %rcx
	movq %cr3, %rax                 # the table is read anew
	movq %rax, %cr3
	popq %rdx
	addq %rdx, %rbx
	loop 1b
	movl $500500 - 42, %eax         # the sum is 500500
	subl %eax, %ebx
	movl %ebx, %eax
	movw $0xf4, %dx
	outl %eax, %dx
2:	hlt
	jmp 2b

	.balign 8, 0x90
segments:
	.quad 0
	.quad 0x00cf9b000000ffff        # 8: code of 32 bits
	.quad 0x00cf93000000ffff        # 16: data
	.quad 0x00af9b000000ffff        # 24: code of 64 bits
table:
	.word table - segments - 1
	.long base + segments - start

	.org 0xff0                      # where the processor begins
	.code16
	jmp start
	.org 0x1000
